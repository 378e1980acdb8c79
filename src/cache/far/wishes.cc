#include "cache/far/wishes.h"

#include <unistd.h>

#include <cerrno>
#include <optional>
#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/bytes.h"
#include "base/own_file.h"

namespace prefixd::cache {
namespace {

constexpr std::string_view kHead = "prefixd clears 1";
constexpr size_t kMostBytes = size_t{1} << 20;
constexpr size_t kMostLines = 4096;

absl::Status Remove(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT || errno == ENOTDIR) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot remove ", path));
}

}  // namespace

std::set<block::SpaceId> Wishes::Load(
    const std::function<std::string(const block::SpaceId&)>& name_of,
    const std::function<void(const std::string&)>& say) {
  std::set<block::SpaceId> spaces;
  const base::MutexLock lock(mutex_);
  for (const std::string& path : {places_.store, places_.arena}) {
    if (path.empty()) continue;
    const absl::StatusOr<std::optional<std::string>> text =
        base::ReadOwnFile(path, kMostBytes, base::ReadableBy::kOwnerAlone);
    if (!text.ok()) say(std::string(text.status().message()));
    if (!text.ok() || !text->has_value()) continue;
    const std::vector<std::string> lines = absl::StrSplit(**text, '\n', absl::SkipEmpty());
    if (lines.empty() || lines[0] != kHead) {
      say(absl::StrCat(path, " is not of this version"));
      continue;
    }
    for (const std::string& line : std::span(lines).subspan(1)) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      block::SpaceId space{};
      if (words.size() == 2 && base::FromHex(words[1], space) && words[0] == name_of(space)) {
        spaces.insert(space);
      } else if (others_.size() < kMostLines) {
        others_.push_back(line);
      }
    }
  }
  return spaces;
}

absl::Status Wishes::Keep(const std::set<block::SpaceId>& spaces,
                          const std::function<std::string(const block::SpaceId&)>& name_of,
                          bool store_is_open) {
  const base::MutexLock lock(mutex_);
  std::string text(kHead);
  text += '\n';
  for (const std::string& line : others_) absl::StrAppend(&text, line, "\n");
  // If there are too many to list, one line asks to raise all of the tenant's.
  const std::set<block::SpaceId> tenant{block::SpaceId{}};
  for (const block::SpaceId& space : spaces.size() > kMostLines ? tenant : spaces) {
    absl::StrAppend(&text, name_of(space), " ", base::ToHex(space), "\n");
  }
  const bool nothing = spaces.empty() && others_.empty();
  bool kept = nothing;
  absl::Status status = absl::UnavailableError("there is neither an SSD tier nor a shared arena");
  for (const std::string& path : {store_is_open ? places_.store : std::string(), places_.arena}) {
    if (path.empty()) continue;
    const absl::Status done = nothing ? Remove(path) : base::WriteOwnFile(path, text);
    kept = kept || done.ok();
    if (!done.ok()) status = done;
  }
  return kept ? absl::OkStatus() : status;
}

}  // namespace prefixd::cache
