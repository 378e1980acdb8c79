// Spill: dirty blocks on their way to SSD, and dropping SSD copies.
#include <algorithm>
#include <utility>

#include "index/impl.h"

namespace prefixd::index {
namespace {

void SetRecordEnds(Node& node, const std::vector<uint32_t>& ends) {
  EndSet said;
  for (const uint32_t end : ends) said.set(end - 1);
  node.set_record_ends(said);
}

uint64_t DirtyBytes(const Node& node) {
  uint64_t bytes = 0;
  for (const Page& page : node.pages()) {
    if (page.state() == PageState::kRam) bytes += PageBytes(node, page);
  }
  return bytes;
}

}  // namespace

SpillBlock PrefixIndex::Impl::ForRecord(Node& node) {
  SpillBlock block;
  block.node = &node;
  block.space = node.space()->shape.id;
  block.hash = node.hash;
  block.parent = node.parent()->hash;
  block.serials = {.own = node.serial(), .parent = node.parent()->serial()};
  block.other_serials.assign(node.other_serials().begin(), node.other_serials().end());
  block.first_token = node.first_token();
  block.tokens.assign(node.tokens().begin(), node.tokens().end());
  block.content.assign(node.content().begin(), node.content().end());
  block.ends = ListEnds(node.ends());
  block.last_use = node.stamp;
  block.touches = node.touches;
  block.was_ghost = node.was_ghost;
  block.pinned = node.pinned() > 0;
  return block;
}

SpillBlock PrefixIndex::Impl::PickBlock(Node& node, uint64_t& bytes) {
  SpillBlock block = ForRecord(node);
  const Change change(*this, node);
  for (Page& page : node.pages()) {
    if (OnSsd(page)) block.ssd_pages.push_back(InfoOf(node, page));
    if (page.state() != PageState::kRam) continue;
    page.set_state(PageState::kSpilling);
    block.pages.push_back(InfoOf(node, page));
    bytes += PageBytes(node, page);
  }
  block.wanted = block.pages.empty();
  BeginSpill(node);
  return block;
}

void PrefixIndex::Impl::BeginSpill(Node& node) {
  node.spilling = true;
  node.refused = false;
  node.record_wanted = false;
  ++node.pins;
}

bool PrefixIndex::Impl::PickChain(Node* node, bool refused_too, uint64_t max_bytes,
                                  std::vector<SpillBlock>& picked, uint64_t& bytes) {
  std::vector<Node*> chain;
  for (; !node->is_root(); node = node->parent()) {
    // At the next start a hole without a record would cut off its descendants.
    const bool unrecorded =
        !node->record_written && !node->spilling && (refused_too || !node->refused);
    const bool refused = refused_too && node->refused && !node->spilling;
    if (WantsSpill(*node) || unrecorded || refused) chain.push_back(node);
  }
  for (auto it = chain.rbegin(); it != chain.rend(); ++it) {
    if (!picked.empty() && bytes + DirtyBytes(**it) > max_bytes) return false;
    picked.push_back(PickBlock(**it, bytes));
  }
  return true;
}

std::vector<SpillBlock> PrefixIndex::PickSpill(uint64_t max_bytes) {
  const base::MutexLock lock(impl_->mutex);
  std::vector<SpillBlock> picked;
  uint64_t bytes = 0;
  while (!impl_->spill_order.empty() &&
         impl_->PickChain(impl_->spill_order.begin()->node, false, max_bytes, picked, bytes)) {
  }
  return picked;
}

std::vector<SpillBlock> PrefixIndex::PickSpillOf(std::span<const BlockRef> blocks,
                                                 uint64_t max_bytes) {
  const base::MutexLock lock(impl_->mutex);
  std::vector<SpillBlock> picked;
  uint64_t bytes = 0;
  for (const BlockRef& block : blocks) {
    const bool there = impl_->nodes.Find(block.node_id) == block.node;
    if (!there || !block.node->in_tree) continue;
    if (!impl_->PickChain(block.node, true, max_bytes, picked, bytes)) break;
  }
  return picked;
}

absl::StatusOr<std::vector<BlockRef>> PrefixIndex::StoredBlocks(block::ReservationId id,
                                                                uint32_t tokens) {
  const base::MutexLock lock(impl_->mutex);
  auto reservation = impl_->FindReservation(id);
  if (!reservation.ok()) return reservation.status();
  auto last = impl_->StoredUpTo(**reservation, tokens);
  if (!last.ok()) return last.status();
  std::vector<BlockRef> blocks;
  for (Node* node = *last; !node->is_root(); node = node->parent()) {
    blocks.push_back({node, node->id()});
  }
  return blocks;
}

PrefixIndex::OnDisk PrefixIndex::AreOnSsd(std::span<const BlockRef> blocks) const {
  const base::MutexLock lock(impl_->mutex);
  OnDisk all = OnDisk::kAll;
  for (const BlockRef& block : blocks) {
    const bool there = impl_->nodes.Find(block.node_id) == block.node;
    if (!there || !block.node->in_tree) return OnDisk::kGone;
    const Node& node = *block.node;
    // Also pages that nobody is going to write: refused ones, and those that are not verified yet.
    const bool only_in_ram = std::ranges::any_of(
        node.pages(), [](const Page& page) { return Present(page) && !OnSsd(page); });
    if (only_in_ram || !node.record_written || node.spilling || impl_->WantsSpill(node)) {
      all = OnDisk::kNotYet;
    }
  }
  return all;
}

void PrefixIndex::Impl::EndSpill(const SpillBlock& block) {
  Node& node = *block.node;
  {
    const Change change(*this, node);
    for (Page& page : node.pages()) {
      if (page.state() != PageState::kSpilling) continue;
      page.set_state(OnSsd(page) ? PageState::kRamAndSsd : PageState::kRam);
    }
    node.spilling = false;
    --node.pins;
  }
  if (Settle(&node) == &node) Merge(node);
}

void PrefixIndex::FinishSpill(std::span<const SpillBlock> blocks,
                              std::span<const SpilledPage> pages) {
  const base::MutexLock lock(impl_->mutex);
  for (const SpilledPage& spilled : pages) {
    Page* const page = impl_->Resolve(spilled.ref);
    // A copy does not bring back a block that left the tree meanwhile, nor a page that turned out
    // bad while it was written again.
    if (page == nullptr || !spilled.ref.node->in_tree) continue;
    const bool fresh = spilled.replaces == 0 && page->state() == PageState::kSpilling;
    const bool again = spilled.replaces != 0 && page->ssd_sequence() == spilled.replaces;
    if (!fresh && !again) continue;
    const Impl::Change change(*impl_, *spilled.ref.node);
    if (page->state() == PageState::kSpilling) page->set_state(PageState::kRamAndSsd);
    page->set_ssd_sequence(spilled.ssd_sequence);
  }
  for (const SpillBlock& block : blocks) {
    Node& node = *block.node;
    {
      const Impl::Change change(*impl_, node);
      node.record_written = true;
      node.set_record_sequence(block.record_sequence);
      SetRecordEnds(node, block.ends);
    }
    impl_->EndSpill(block);
  }
}

void PrefixIndex::AbortSpill(std::span<const SpillBlock> blocks) {
  const base::MutexLock lock(impl_->mutex);
  for (const SpillBlock& block : blocks) {
    if (block.wanted) block.node->record_wanted = true;
    impl_->EndSpill(block);
  }
}

void PrefixIndex::RefuseSpill(std::span<const SpillBlock> blocks) {
  const base::MutexLock lock(impl_->mutex);
  impl_->any_refused = impl_->any_refused || !blocks.empty();
  for (const SpillBlock& block : blocks) {
    {
      const Impl::Change change(*impl_, *block.node);
      block.node->refused = true;
    }
    impl_->EndSpill(block);
  }
}

void PrefixIndex::Impl::Admit(Node& node) {
  const Change change(*this, node);
  node.refused = false;
}

void PrefixIndex::AdmitAll() {
  {
    const base::MutexLock lock(impl_->mutex);
    if (!std::exchange(impl_->any_refused, false)) return;
  }
  impl_->ForEachInSteps([&](Node& node) PREFIXD_REQUIRES(impl_->mutex) {
    if (node.refused) impl_->Admit(node);
  });
}

void PrefixIndex::Impl::DropCopies(Node& node, const IsDropped& dropped) {
  const Change change(*this, node);
  for (Page& page : node.pages()) {
    if (!dropped(page.ssd_sequence())) continue;
    page.set_ssd_sequence(0);
    if (page.state() == PageState::kSsd) FreePage(page);
    if (page.state() == PageState::kRamAndSsd) page.set_state(PageState::kRam);
  }
  if (!dropped(node.record_sequence())) return;
  node.record_written = false;
  node.set_record_sequence(0);
  SetRecordEnds(node, {});
  // A restart must find what is left on SSD of the block or below it.
  node.record_wanted = true;
}

uint64_t PrefixIndex::DropSsdRange(uint64_t first, uint64_t last) {
  return impl_->DropOnSsd([first, last](uint64_t sequence) {
    return sequence != 0 && sequence >= first && sequence <= last;
  });
}

uint64_t PrefixIndex::DropSsdPages(std::vector<uint64_t> sequences) {
  std::ranges::sort(sequences);
  return impl_->DropOnSsd([sequences = std::move(sequences)](uint64_t sequence) {
    return sequence != 0 && std::ranges::binary_search(sequences, sequence);
  });
}

uint64_t PrefixIndex::Impl::DropOnSsd(const IsDropped& dropped) {
  const base::MutexLock one(drop_mutex);
  {
    const base::MutexLock lock(mutex);
    dropping = dropped;
  }
  std::vector<FoundBlock> touched = FindInSteps([&](const Node& node) {
    const bool page_dropped = std::ranges::any_of(
        node.pages(), [&](const Page& page) { return dropped(page.ssd_sequence()); });
    return page_dropped || dropped(node.record_sequence());
  });
  uint64_t dirtied = 0;
  ForEachInSteps(touched, [&](Node& node) PREFIXD_REQUIRES(mutex) {
    const uint64_t before = totals.dirty_bytes;
    DropCopies(node, dropped);
    dirtied += totals.dirty_bytes - before;
  });
  {
    const base::MutexLock lock(mutex);
    dropping = nullptr;
  }
  SettleDeepestFirst(&touched);
  return dirtied;
}

}  // namespace prefixd::index
