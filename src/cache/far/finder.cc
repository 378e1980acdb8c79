#include "cache/far/finder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace prefixd::cache {
namespace {

constexpr uint32_t kFirstBatch = 4, kLargestBatch = 256, kGrowth = 4;

// Whether every group whose pages have a rung can be read in this one.
bool Reads(const SpaceInfo& space, const Request& request, uint32_t rung) {
  for (uint32_t group = 0; group < space.identity.groups.size(); ++group) {
    if (space.IsState(group)) continue;
    if (rung >= space.identity.groups[group].ladder.size()) return false;
    const bool selected =
        request.groups.empty() || std::ranges::find(request.groups, group) != request.groups.end();
    if (selected && !request.readable.empty() && (request.readable[group] >> rung & 1) == 0) {
      return false;
    }
  }
  return true;
}

bool HasStates(const SpaceInfo& space) {
  for (uint32_t group = 0; group < space.identity.groups.size(); ++group) {
    if (space.IsState(group)) return true;
  }
  return false;
}

}  // namespace

struct Finder::Search {
  // What block `index` may be stored under: its pages as one of `formats`, then its snapshot.
  std::vector<std::string> KeysOf(uint32_t index) const {
    std::vector<std::string> keys;
    for (const std::string& of : formats) keys.push_back(remote::KeyOf(names[index], of));
    if (states) keys.push_back(remote::KeyOf(names[index], kSnapshotFormats));
    return keys;
  }

  const SpaceInfo& space;
  const block::SequenceView sequence;
  const base::Deadline deadline;
  const std::vector<std::string> formats;
  const bool states;  // the space has snapshots
  const uint64_t generation;
  ChainNames names = {};  // so many as batches wanted: most requests end with the first
  std::vector<FoundBlock> found = {};
};

std::vector<std::string> Finder::FormatsFor(const SpaceInfo& space, const Request& request) {
  std::vector<std::string> formats;
  for (uint32_t rung = 0; rung < block::kMaxLadder; ++rung) {
    if (Reads(space, request, rung)) formats.push_back(FormatsOf(rung));
  }
  return formats;
}

bool Finder::IsAbsent(const Search& search, const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(search.formats.size()),
                     [this](const std::string& key) { return far_->absent.Contains(key); });
}

std::optional<FoundBundle> Finder::Open(const Search& search, uint32_t block,
                                        const std::string& key, const std::string& formats,
                                        const std::string& record) {
  const uint32_t block_tokens = search.space.identity.block_tokens;
  const BlockSlice slice(search.sequence, block, block_tokens);
  const remote::Wanted wanted{.least = far_->options().seal,
                              .space = search.space.id,
                              .groups = search.space.identity.groups,
                              .generation = search.generation,
                              .name = search.names[block],
                              .parent = block == 0 ? remote::ChainName{} : search.names[block - 1],
                              .first_token = block * block_tokens,
                              .formats = formats,
                              .block = slice.view()};
  FoundBundle bundle{.key = key, .opened = {}};
  const remote::BadBundle bad = remote::OpenRecord(
      far_->options().keys, std::as_bytes(std::span(record)), wanted, &bundle.opened);
  if (bad == remote::BadBundle::kNone) return bundle;
  context_->counters.Add(absl::StrCat("remote.bad.", remote::NameOf(bad)));
  far_->SaySpoiled(key);
  return std::nullopt;
}

FoundBlock Finder::Take(const Search& search, uint32_t block, const std::vector<std::string>& keys,
                        std::span<const remote::FoundRecord> records) {
  using Outcome = remote::FoundRecord::Outcome;
  FoundBlock found;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (records[i].outcome == Outcome::kAbsent) far_->SayAbsent(keys[i]);
    if (records[i].outcome == Outcome::kLate) context_->counters.Add("remote.late");
    if (records[i].outcome != Outcome::kFound) continue;
    const bool snapshot = i >= search.formats.size();
    if (!snapshot && !found.bundles.empty()) continue;  // it is there in a preferred rung
    std::optional<FoundBundle> bundle = Open(
        search, block, keys[i], snapshot ? kSnapshotFormats : search.formats[i], records[i].record);
    if (!bundle.has_value()) continue;
    far_->present.Add(keys[i]);
    found.has_pages |= !snapshot || search.formats.empty();
    found.has_snapshot |= snapshot;
    found.bundles.push_back(*std::move(bundle));
  }
  return found;
}

bool Finder::FindBatch(Search& search, uint32_t begin, uint32_t end) {
  std::vector<std::vector<std::string>> keys;  // of each block
  std::vector<std::string> asked;
  for (uint32_t block = begin; block < end; ++block) {
    std::vector<std::string> of_block = search.KeysOf(block);
    if (IsAbsent(search, of_block)) break;
    asked.insert(asked.end(), of_block.begin(), of_block.end());
    keys.push_back(std::move(of_block));
  }
  if (asked.empty()) return false;
  const std::vector<remote::FoundRecord> records = far_->store().Find(asked, search.deadline);
  const bool answered = std::ranges::any_of(records, [](const remote::FoundRecord& record) {
    return record.outcome == remote::FoundRecord::Outcome::kFound ||
           record.outcome == remote::FoundRecord::Outcome::kAbsent;
  });
  if (!answered) far_->SayDown();
  size_t next = 0;
  for (const std::vector<std::string>& of_block : keys) {
    FoundBlock found =
        Take(search, begin++, of_block, std::span(records).subspan(next, of_block.size()));
    next += of_block.size();
    if (!found.has_pages) return false;
    search.found.push_back(std::move(found));
  }
  return begin == end;
}

std::vector<FoundBlock> Finder::Find(const SpaceInfo& space, const Request& request,
                                     uint32_t first_block, uint32_t end_block,
                                     base::Deadline deadline) {
  const absl::StatusOr<uint64_t> generation = far_->generations.Of(space.id, deadline);
  if (!generation.ok()) {
    far_->SayDown();
    return {};
  }
  const block::SequenceView sequence{request.tokens, request.content};
  Search search{.space = space,
                .sequence = sequence,
                .deadline = deadline,
                .formats = FormatsFor(space, request),
                .states = HasStates(space),
                .generation = *generation};
  uint32_t batch = kFirstBatch;
  for (uint32_t begin = first_block; begin < end_block;) {
    const uint32_t end = std::min(begin + batch, end_block);
    far_->ExtendNames(space, *generation, sequence, end, &search.names);
    if (!FindBatch(search, begin, end)) break;
    begin = end;
    batch = std::min(batch * kGrowth, kLargestBatch);
  }
  return std::move(search.found);
}

}  // namespace prefixd::cache
