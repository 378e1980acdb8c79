// Leases that ask for the same sequence at the same time hold its pages together.
#include <utility>

#include "base/clock.h"
#include "index/impl.h"

namespace prefixd::index {
namespace {

// While leases keep joining a path its blocks get their stamps so often. Until then spilling and
// the rewriting of SSD files see them as used that much earlier.
constexpr int64_t kStampsWaitUs = 1'000'000;

uint64_t BitOf(uint32_t slot) { return slot < block::kArenaSlots ? uint64_t{1} << slot : 0; }

// Returns whether `held` holds just the pages of the path's first `blocks` blocks.
bool HoldsJust(const HeldPath& held, const RestorablePath& path, size_t blocks) {
  const size_t groups = path.pages.size() / path.blocks.size();
  if (held.pages.size() != blocks * groups) return false;
  auto page = held.pages.begin();
  for (size_t i = 0; i < blocks; ++i) {
    for (size_t group = 0; group < groups; ++group, ++page) {
      const Page& other = *path.pages[i * groups + group];
      if (page->node != path.blocks[i] || page->group != other.group() ||
          page->rung != other.rung()) {
        return false;
      }
    }
  }
  return true;
}

// Spaces with other groups have paths that lack pages, and leases that begin later have blocks
// before them which want stamps too.
bool MayShare(const Lease& lease) { return lease.usable.regular && lease.from == 0; }

}  // namespace

bool PrefixIndex::Impl::Join(Lease& lease, const RestorablePath& path) {
  const size_t blocks = BlocksBefore(path, lease.tokens);
  if (!MayShare(lease) || blocks == 0) return false;
  const auto shared = shared_paths.find(path.blocks[blocks - 1]);
  if (shared == shared_paths.end()) return false;
  const std::shared_ptr<HeldPath> held = shared->second.lock();
  if (!HoldsJust(*held, path, blocks)) return false;
  lease.held = held;

  const int64_t now = base::SystemClock::Get().UnixMicros();
  if ((BitOf(lease.slot) & ~held->slots) != 0 || IsAnotherUse(held->marked_us, now)) {
    for (size_t i = 0; i < held->pages.size(); ++i) Mark(path.pages[i]->Use(), lease.slot, now);
    held->slots |= BitOf(lease.slot);
    held->marked_us = now;
  }
  if (lease.reads) ReadTogether(*held, path, blocks);
  ages.NoteStamp(next_stamp);
  held->first_stamp = next_stamp;
  next_stamp += static_cast<int64_t>(blocks);
  const int64_t uptime = options.clock->MonotonicMicros();
  if (uptime - held->stamped_us > kStampsWaitUs) {
    WriteStamps(*held);
    held->stamped_us = uptime;
  }
  return true;
}

void PrefixIndex::Impl::ReadTogether(const HeldPath& held, const RestorablePath& path,
                                     size_t blocks) {
  LeasedSums sums;
  Ages::Counting read = CountRead();
  int64_t drawn = held.first_stamp == 0 ? 0 : held.first_stamp + static_cast<int64_t>(blocks);
  for (size_t i = 0; i < blocks; ++i) {
    if (drawn > 0) --drawn;
    Node& node = *path.blocks[i];
    ReadBlock(node, std::max(node.stamp, drawn), read, sums);
  }
  AddSums(sums);
}

void PrefixIndex::Impl::Share(const Lease& lease) {
  if (!MayShare(lease)) return;
  HeldPath& held = *lease.held;
  held.slots = BitOf(lease.slot);
  held.marked_us = base::SystemClock::Get().UnixMicros();
  held.stamped_us = options.clock->MonotonicMicros();
  shared_paths.try_emplace(held.pages.back().node, lease.held);
}

void PrefixIndex::Impl::WriteStamps(HeldPath& held) {
  int64_t stamp = std::exchange(held.first_stamp, 0);
  if (stamp == 0) return;
  const Node* last = nullptr;
  for (size_t end = held.pages.size(); end > 0; --end) {  // leaf first, as they were drawn
    Node& node = *held.pages[end - 1].node;
    if (std::exchange(last, &node) == &node) continue;
    if (node.in_tree && node.stamp < stamp) StampBlock(node, stamp);
    ++stamp;
  }
}

void PrefixIndex::Impl::EndSharing(HeldPath& held) {
  if (!held.pages.empty()) {
    const auto shared = shared_paths.find(held.pages.back().node);
    if (shared != shared_paths.end() && shared->second.lock().get() == &held) {
      shared_paths.erase(shared);
    }
  }
  WriteStamps(held);
}

}  // namespace prefixd::index
