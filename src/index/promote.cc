// Promotion: one reader brings a page back from SSD or checks it in place; everybody else waits.
#include "base/clock.h"
#include "index/impl.h"

namespace prefixd::index {

bool PrefixIndex::BeginPromotion(const PageRef& ref) {
  const base::MutexLock lock(impl_->mutex);
  Page* const page = impl_->Resolve(ref);
  if (page == nullptr || page->state() != PageState::kSsd) return false;
  impl_->SetPromoting(*ref.node, *page);
  return true;
}

bool PrefixIndex::BeginCheck(const PageRef& ref, block::Extent extent) {
  const base::MutexLock lock(impl_->mutex);
  Page* const page = impl_->Resolve(ref);
  if (page == nullptr || page->state() != PageState::kUnverified || page->extent() != extent) {
    return false;
  }
  impl_->SetPromoting(*ref.node, *page);
  return true;
}

void PrefixIndex::Impl::SetPromoting(Node& node, Page& page) {
  const Change change(*this, node);
  page.set_state(PageState::kPromoting);
  ++node.pins;  // the session may end while the page is read
}

void PrefixIndex::Impl::PutInRam(Node& node, Page& page, block::Extent extent,
                                 block::PageMarks* marks) {
  PageUse& use = page.Use();
  if (use.holders == 0) use.slots = 0;
  page.set_extent(extent);
  use.marks = marks;
  WriteMarks(node, page, base::SystemClock::Get().UnixMicros());
}

bool PrefixIndex::FinishPromotion(const PageRef& ref, block::Extent extent,
                                  block::PageMarks* marks) {
  const base::MutexLock lock(impl_->mutex);
  const bool from_ssd = !impl_->Resolve(ref)->has_extent();
  if (from_ssd && ref.node->space()->shape.IsState(ref.group) &&
      !impl_->MakeSnapshotRoom(extent.bytes)) {
    return false;
  }
  Page* const page = impl_->Resolve(ref);
  {
    const Impl::Change change(*impl_, *ref.node);
    if (from_ssd) {
      impl_->PutInRam(*ref.node, *page, extent, marks);
    } else {
      PageUse& use = page->Use();
      if (use.holders == 0) use.slots = 0;  // bits of an earlier daemon's readers, who are gone
      if (use.marks != nullptr) use.marks->SetHolders(use.slots);
    }
    page->set_state(OnSsd(*page) ? PageState::kRamAndSsd : PageState::kRam);
    --ref.node->pins;
  }
  if (impl_->Settle(ref.node) == ref.node) impl_->Merge(*ref.node);
  impl_->promoted.NotifyAll();
  return true;
}

void PrefixIndex::Impl::DropBadCopy(Node& node, Page& page) {
  const bool in_place = page.has_extent();
  if (in_place && page.holders() > 0) {
    // A session of an earlier daemon may be reading the extent: nothing else may be written there.
    condemned.push_back({&node, page.group(), page.rung(), page.extent()});
    page.Use().condemned = true;
    page.DropExtent();
  }
  FreeExtent(page);
  if (in_place && OnSsd(page)) {
    page.set_state(PageState::kSsd);
  } else {
    FreePage(page);
  }
}

void PrefixIndex::FailPromotion(const PageRef& ref, PromotionFailure failure) {
  const base::MutexLock lock(impl_->mutex);
  Page* const page = impl_->Resolve(ref);
  {
    const Impl::Change change(*impl_, *ref.node);
    const bool in_place = page->has_extent();
    if (failure == PromotionFailure::kCorrupt || (!in_place && !OnSsd(*page))) {
      impl_->DropBadCopy(*ref.node, *page);
    } else {
      page->set_state(in_place ? PageState::kUnverified : PageState::kSsd);
    }
    --ref.node->pins;
  }
  if (impl_->Settle(ref.node) == ref.node) impl_->Merge(*ref.node);
  impl_->promoted.NotifyAll();
}

PageInfo PrefixIndex::WaitWhilePromoting(const PageRef& ref, base::Deadline deadline) const {
  const base::MutexLock lock(impl_->mutex);
  bool in_time = true;
  while (true) {
    const Page* const page = impl_->Resolve(ref);
    if (page == nullptr) return {.ref = ref};
    if (page->state() != PageState::kPromoting || !in_time) return InfoOf(*ref.node, *page);
    in_time = impl_->promoted.WaitUntil(impl_->mutex, deadline);
  }
}

std::optional<BlockDescription> PrefixIndex::Describe(const PageRef& ref) const {
  const base::MutexLock lock(impl_->mutex);
  const Page* const page = impl_->Resolve(ref);
  if (page == nullptr || !Present(*page) || !ref.node->in_tree) return std::nullopt;
  const Node& node = *ref.node;
  // A snapshot is described with the block of its own tokens; it may stand in any block that begins
  // with them.
  const bool state = node.space()->shape.IsState(page->group());
  const Slice block(node.view(), 0, state ? page->rung() : node.size());
  const bool whole = block.size() == node.size();
  BlockDescription description{
      .name = {.hash = whole ? node.hash : HashOfPrefix(node, page->rung()),
               .parent = node.parent()->hash},
      .serials = {.own = whole ? node.serial() : 0, .parent = node.parent()->serial()},
      .first_token = node.first_token(),
      .tokens = {block.view().tokens.begin(), block.view().tokens.end()},
      .content = {block.view().content.begin(), block.view().content.end()},
      .ends = ListEnds(node.ends())};
  std::erase_if(description.ends, [&](uint32_t end) { return end > block.size(); });
  return description;
}

}  // namespace prefixd::index
