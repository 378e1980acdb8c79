// Leases that ask for the same sequence at the same time hold its pages together.
#include <algorithm>
#include <span>
#include <utility>

#include "base/clock.h"
#include "index/impl.h"

namespace prefixd::index {
namespace {

// While leases keep joining a path its blocks get their stamps so often. Until then spilling and
// the rewriting of SSD files see them as used that much earlier.
constexpr int64_t kStampsWaitUs = 1'000'000;

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

// In spaces with other groups paths lack pages, and stamps that come late would order snapshots
// and windows otherwise; before leases that begin later there are blocks which want stamps too.
bool MayShare(const Lease& lease) { return lease.space->regular && lease.from == 0; }

// Names the paths that end with the block `last` in these groups and rungs. Paths of one name may
// differ in the rungs of earlier blocks.
SharedName NameOf(const Node* last, std::span<Page* const> pages) {
  uint64_t forms = 0;
  for (const Page* const page : pages) {
    forms = forms * 0x9E3779B97F4A7C15 + (uint64_t{page->group()} << 8 | page->rung()) + 1;
  }
  return {last, forms};
}

}  // namespace

bool PrefixIndex::Impl::Join(Lease& lease, const RestorablePath& path) {
  const size_t blocks = BlocksBefore(path, lease.tokens);
  if (!MayShare(lease) || blocks == 0) return false;
  const size_t groups = path.pages.size() / path.blocks.size();
  const std::span<Page* const> pages(path.pages.data(), blocks * groups);
  const auto shared = shared_paths.find(NameOf(path.blocks[blocks - 1], pages.last(groups)));
  if (shared == shared_paths.end()) return false;
  const std::shared_ptr<HeldPath> held = shared->second.lock();
  if (!HoldsJust(*held, path, blocks)) return false;
  lease.held = held;

  const int64_t now = base::SystemClock::Get().UnixMicros();
  const uint64_t slot = BitOf(lease.slot);
  if ((slot & ~held->slots) != 0 || IsAnotherUse(held->marked_us, now)) {
    for (size_t i = 0; i < pages.size(); ++i) {
      if (i + kMarksAhead < pages.size()) pages[i + kMarksAhead]->AskForMarks();
      Mark(pages[i]->Use(), slot, now);
    }
    held->slots |= slot;
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
  for (size_t i = 0; i < blocks; ++i) {
    Node& node = *path.blocks[i];
    const int64_t drawn =
        held.first_stamp == 0 ? 0 : held.first_stamp + static_cast<int64_t>(blocks - 1 - i);
    ReadBlock(node, std::max(node.stamp, drawn), read, sums);
  }
  AddSums(sums);
}

void PrefixIndex::Impl::Share(const Lease& lease, const RestorablePath& path) {
  if (!MayShare(lease)) return;
  HeldPath& held = *lease.held;
  const size_t blocks = BlocksBefore(path, lease.tokens);
  const size_t groups = path.pages.size() / path.blocks.size();
  held.name = NameOf(path.blocks[blocks - 1], {&path.pages[(blocks - 1) * groups], groups});
  held.slots = BitOf(lease.slot);
  held.marked_us = base::SystemClock::Get().UnixMicros();
  held.stamped_us = options.clock->MonotonicMicros();
  shared_paths.try_emplace(held.name, lease.held);
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
  const auto shared = shared_paths.find(held.name);
  if (shared != shared_paths.end() && shared->second.lock().get() == &held) {
    shared_paths.erase(shared);
  }
  WriteStamps(held);
}

}  // namespace prefixd::index
