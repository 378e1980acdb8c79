#include "cache/far/space_board.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/status.h"
#include "remote/note.h"

namespace prefixd::cache {
namespace {

constexpr uint8_t kNoteVersion = 1;
constexpr size_t kMostAtOnce = 8;  // spaces that one Step tells of
constexpr size_t kMostHostBytes = 256;
constexpr int64_t kBoardUs =
    std::chrono::duration_cast<std::chrono::microseconds>(SpaceBoard::kBoardHours).count();

// u8 version | i64 unix microseconds | u32 length, host | u32 length, encoded identity
std::string EncodeNote(const ToldSpace& told) {
  base::ByteWriter writer;
  writer.Fixed(kNoteVersion);
  writer.Fixed(told.unix_us);
  writer.Framed(told.host);
  writer.Framed(block::Encode(told.identity));
  return writer.Take();
}

bool DecodeNote(const std::string& text, ToldSpace* told) {
  base::ByteReader reader(base::AsBytes(text));
  if (reader.Fixed<uint8_t>() != kNoteVersion) return false;
  told->unix_us = reader.Fixed<int64_t>();
  told->host = reader.Framed();
  absl::StatusOr<block::SpaceIdentity> identity = block::DecodeSpaceIdentity(reader.Framed());
  if (!reader.ok() || reader.remaining() != 0 || told->host.size() > kMostHostBytes) return false;
  if (!identity.ok() || !identity->salt.empty()) return false;
  told->identity = *std::move(identity);
  return true;
}

}  // namespace

block::SpaceIdentity WithoutSalt(block::SpaceIdentity identity) {
  identity.salt.clear();
  return identity;
}

int64_t SpaceBoard::BoardNow() const { return context_->options.clock->UnixMicros() / kBoardUs; }

std::string SpaceBoard::BoardName(int64_t board) const {
  return remote::KeyOf(NoteName(board, {}), "b");
}

remote::ChainName SpaceBoard::NoteName(int64_t board, const block::SpaceId& space) const {
  return remote::Namer(far_->options().keys, static_cast<uint64_t>(board), space).Next({}, {});
}

void SpaceBoard::Opened(const block::SpaceIdentity& identity) {
  if (!far_->on()) return;
  block::SpaceIdentity told = WithoutSalt(identity);
  const block::SpaceId id = block::IdOf(told);
  const base::MutexLock lock(mutex_);
  Known& known = known_[id];
  has_new_ = has_new_ || !known.told_us.has_value();
  known.identity = std::move(told);
  known.opened_us = context_->Now();
  if (known_.size() <= kMostSpaces) return;
  known_.erase(std::ranges::min_element(known_, {},
                                        [](const auto& entry) { return entry.second.opened_us; }));
}

uint64_t SpaceBoard::MemoryBytes() const {
  const base::MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [id, known] : known_) {
    bytes += sizeof(id) + sizeof(known) + block::Encode(known.identity).size();
  }
  return bytes;
}

std::optional<block::SpaceIdentity> SpaceBoard::NextUntold() {
  const base::MutexLock lock(mutex_);
  for (const auto& [id, known] : known_) {
    if (!known.told_us.has_value() || context_->Now() - *known.told_us >= kToldUs) {
      return known.identity;
    }
  }
  return std::nullopt;
}

bool SpaceBoard::Tell(const block::SpaceIdentity& identity, base::Deadline deadline) {
  const block::SpaceId id = block::IdOf(identity);
  const int64_t board = BoardNow();
  const remote::ChainName name = NoteName(board, id);
  const std::string text = EncodeNote({.identity = identity,
                                       .host = far_->options().host.substr(0, kMostHostBytes),
                                       .unix_us = context_->options.clock->UnixMicros()});
  const remote::Post post{
      .field = base::ToHex(name),
      .text = remote::SealNote(far_->options().keys, far_->options().seal, name, text)};
  const absl::Status written =
      far_->store().WritePost(BoardName(board), post, 2 * kBoardHours, deadline);
  // An identity that is too long is not told at all.
  if (!written.ok() && !absl::IsInvalidArgument(written)) return false;
  const base::MutexLock lock(mutex_);
  if (const auto known = known_.find(id); known != known_.end()) {
    known->second.told_us = context_->Now();
  }
  return true;
}

void SpaceBoard::Step(base::Deadline deadline) {
  {
    const base::MutexLock lock(mutex_);
    const int64_t now = context_->Now();
    if (now < refused_until_us_ || (!has_new_ && now < next_look_us_)) return;
    has_new_ = false;
    next_look_us_ = now + kLookUs;
  }
  for (size_t told = 0; told < kMostAtOnce; ++told) {
    const std::optional<block::SpaceIdentity> untold = NextUntold();
    if (!untold.has_value()) return;
    if (Tell(*untold, deadline)) continue;
    const base::MutexLock lock(mutex_);
    refused_until_us_ = context_->Now() + kRefusedUs;
    return;
  }
}

bool SpaceBoard::ReadNote(int64_t board, const remote::Post& post, ToldSpace* told) const {
  remote::ChainName name;
  if (!base::FromHex(post.field, name)) return false;
  const remote::Seal least = far_->options().seal;
  const std::optional<std::string> text =
      remote::OpenNote(far_->options().keys, least, name, base::AsBytes(post.text));
  return text.has_value() && DecodeNote(*text, told) &&
         NoteName(board, block::IdOf(told->identity)) == name;
}

absl::StatusOr<std::vector<ToldSpace>> SpaceBoard::Read(base::Deadline deadline) {
  std::vector<ToldSpace> all;
  uint64_t unreadable = 0, old = 0;
  const int64_t now = BoardNow();
  const int64_t oldest_us = context_->options.clock->UnixMicros() - 2 * kBoardUs;
  for (const int64_t board : {now, now - 1}) {
    PREFIXD_ASSIGN_OR_RETURN(const std::vector<remote::Post> posts,
                             far_->store().ReadBoard(BoardName(board), deadline));
    for (const remote::Post& post : posts) {
      ToldSpace told;
      if (!ReadNote(board, post, &told)) {
        ++unreadable;
      } else if (told.unix_us < oldest_us) {
        ++old;
      } else {
        all.push_back(std::move(told));
      }
    }
  }
  context_->counters.AddAll(
      {{"remote.bad.told_space", unreadable}, {"remote.bad.told_long_ago", old}});
  std::ranges::stable_sort(all, std::ranges::greater{}, &ToldSpace::unix_us);
  // Once each: it may be on the board before, too.
  std::set<block::SpaceId> seen;
  std::erase_if(all, [&seen](const ToldSpace& told) {
    return !seen.insert(block::IdOf(told.identity)).second;
  });
  return all;
}

}  // namespace prefixd::cache
