#include "index/space.h"

#include <algorithm>
#include <bit>

namespace prefixd::index {
namespace {

template <typename Op>
void Apply(Totals& a, const Totals& b, Op op) {
  a.blocks = op(a.blocks, b.blocks);
  a.holes = op(a.holes, b.holes);
  a.ends = op(a.ends, b.ends);
  a.stored_tokens = op(a.stored_tokens, b.stored_tokens);
  a.ram_payload = op(a.ram_payload, b.ram_payload);
  a.ram_extents = op(a.ram_extents, b.ram_extents);
  a.ssd_payload = op(a.ssd_payload, b.ssd_payload);
  a.ssd_pages = op(a.ssd_pages, b.ssd_pages);
  a.dirty_bytes = op(a.dirty_bytes, b.dirty_bytes);
  a.clean_bytes = op(a.clean_bytes, b.clean_bytes);
  a.leased_bytes = op(a.leased_bytes, b.leased_bytes);
  a.pinned_bytes = op(a.pinned_bytes, b.pinned_bytes);
  a.kept_bytes = op(a.kept_bytes, b.kept_bytes);
  a.memory_bytes = op(a.memory_bytes, b.memory_bytes);
  a.snapshot_extents = op(a.snapshot_extents, b.snapshot_extents);
  a.read_again_extents = op(a.read_again_extents, b.read_again_extents);
}

// Returns whether the page's extent is free to use as soon as nobody holds the page.
bool CountsAsClean(const Node& node, const Page& page) {
  return node.pinned() == 0 && page.has_extent() && (OnSsd(page) || node.refused);
}

void AddPage(const Node& node, const Page& page, Totals& totals) {
  if (page.has_extent()) {
    totals.ram_payload += PayloadBytes(node, page);
    totals.ram_extents += page.extent().bytes;
    if (!OnSsd(page)) totals.dirty_bytes += page.extent().bytes;
    if (page.holders() == 0 && CountsAsClean(node, page)) totals.clean_bytes += page.extent().bytes;
  }
  if (OnSsd(page)) {
    totals.ssd_payload += PayloadBytes(node, page);
    totals.ssd_pages += PageBytes(node, page);
  }
}

}  // namespace

Totals& Totals::operator+=(const Totals& other) {
  Apply(*this, other, [](uint64_t a, uint64_t b) { return a + b; });
  return *this;
}
Totals& Totals::operator-=(const Totals& other) {
  Apply(*this, other, [](uint64_t a, uint64_t b) { return a - b; });
  return *this;
}

Totals TotalsOf(const Node& node) {
  Totals totals;
  bool any = false;
  const bool pinned = node.pinned() > 0;
  for (const Page& page : node.pages()) {
    if (!Present(page)) continue;
    any = true;
    if (node.in_tree) AddPage(node, page, totals);
    if (!node.space()->regular && node.in_tree && node.space()->shape.IsState(page.group())) {
      totals.snapshot_extents += page.extent().bytes;
    }
    if (page.holders() > 0) totals.leased_bytes += BytesOf(node, page);
    if (pinned) totals.pinned_bytes += BytesOf(node, page);
    if (page.holders() > 0 || pinned) totals.kept_bytes += BytesOf(node, page);
  }
  totals.memory_bytes = node.MemoryBytes();
  if (node.read_again()) totals.read_again_extents = totals.ram_extents;
  if (!node.in_tree) return totals;
  totals.blocks = any ? 1 : 0;
  totals.holes = any ? 0 : 1;
  totals.stored_tokens = any ? node.size() : 0;
  totals.ends = node.ends().count();
  return totals;
}

void LeasedSums::Add(const Node& node, const Page& page) {
  space = node.space();
  const uint64_t bytes = Present(page) ? BytesOf(node, page) : 0;
  leased_bytes += bytes;
  if (node.pinned() > 0) return;  // kept already
  kept_bytes += bytes;
  if (node.in_tree && CountsAsClean(node, page)) clean_bytes -= page.extent().bytes;
}
void LeasedSums::Remove(const Node& node, const Page& page) {
  space = node.space();
  const uint64_t bytes = Present(page) ? BytesOf(node, page) : 0;
  leased_bytes -= bytes;
  if (node.pinned() > 0) return;
  kept_bytes -= bytes;
  if (node.in_tree && CountsAsClean(node, page)) clean_bytes += page.extent().bytes;
}

std::optional<uint16_t> PageSizes::NumberOf(const Pair& pair) {
  if (pairs_[last_] == pair && last_ != 0) return last_;
  const auto known = numbers_.find(pair);
  if (known != numbers_.end()) return last_ = known->second;
  if (pairs_.size() > UINT16_MAX) return std::nullopt;
  const auto number = static_cast<uint16_t>(pairs_.size());
  pairs_.push_back(pair);
  numbers_.emplace(pair, number);
  return number;
}

absl::Status TooManySizes() {
  return absl::ResourceExhaustedError("index: the space has pages of 65536 different sizes");
}

Usable UsableOf(const SpaceShape& shape, const Selection& selection) {
  Usable usable;
  const auto add = [&](uint32_t group) {
    if (group >= shape.rungs.size()) return;
    const uint64_t all =
        shape.rungs[group] >= 64 ? ~uint64_t{0} : (uint64_t{1} << shape.rungs[group]) - 1;
    const uint64_t mask = group < selection.rungs.size() ? selection.rungs[group] & all : all;
    usable.groups.push_back({static_cast<uint16_t>(group), mask, shape.RuleOf(group)});
    if (!usable.groups.back().full()) usable.regular = false;
    if (mask != all) usable.has_mask = true;
  };
  if (selection.groups.empty()) {
    for (uint32_t group = 0; group < shape.rungs.size(); ++group) add(group);
  } else {
    for (const uint32_t group : selection.groups) add(group);
  }
  return usable;
}

Usable AnyRung(const Usable& usable) {
  Usable any = usable;
  for (Usable::Group& group : any.groups) {
    if (!group.state()) group.rungs = ~uint64_t{0};
  }
  any.has_mask = false;
  return any;
}

Usable OnlyFull(const Usable& usable) {
  Usable full = usable;
  std::erase_if(full.groups, [](const Usable::Group& group) { return !group.full(); });
  full.regular = true;
  return full;
}

Usable WithoutStates(const Usable& usable) {
  Usable kv = usable;
  std::erase_if(kv.groups, [](const Usable::Group& group) { return group.state(); });
  return kv;
}

const Page* BestPage(const Node& node, const Usable::Group& group) {
  for (const Page& page : node.pages()) {
    if (page.group() > group.group) return nullptr;
    if (page.group() == group.group && IsUsable(page, group)) return &page;
  }
  return nullptr;
}

bool Serves(const Node& node, const Usable& usable) {
  if (!AnyPresent(node) || usable.groups.empty()) return false;
  return std::all_of(usable.groups.begin(), usable.groups.end(),
                     [&](const Usable::Group& group) { return BestPage(node, group) != nullptr; });
}

uint64_t MemoryOf(const Lease& lease) {
  return sizeof(Lease) + 32 + lease.usable.groups.capacity() * sizeof(Usable::Group);
}

uint64_t MemoryOf(const HeldPath& held) {
  constexpr uint64_t kInSharedPaths = 64;  // its entry there and the counts of its shared_ptr
  return sizeof(HeldPath) + kInSharedPaths + held.pages.capacity() * sizeof(HeldPage);
}

uint64_t MemoryOf(const PinnedPath& path) {
  return sizeof(PinnedPath) + 32 + path.nodes.capacity() * sizeof(Node*);
}

void Ghosts::Add(const block::BlockHash& hash) {
  if (limit_ == 0) return;
  serials_[hash] = next_serial_;
  by_age_.emplace_back(next_serial_++, hash);
  while (serials_.size() > limit_ || by_age_.size() > size_t{2} * limit_) ForgetOldest();
}

void Ghosts::ForgetOldest() {
  const auto [serial, hash] = by_age_.front();
  by_age_.pop_front();
  const auto it = serials_.find(hash);
  if (it != serials_.end() && it->second == serial) serials_.erase(it);
}

uint64_t Ghosts::MemoryBytes() const {
  constexpr uint64_t kEntry = sizeof(std::pair<uint64_t, block::BlockHash>);
  return serials_.capacity() * (kEntry + 1) + by_age_.size() * kEntry;
}

}  // namespace prefixd::index
