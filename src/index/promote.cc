// Promotion: one reader brings a page back from SSD, everybody else waits.
#include "index/impl.h"

namespace prefixd::index {

bool PrefixIndex::BeginPromotion(const PageRef& ref) {
  const base::MutexLock lock(impl_->mutex);
  Page* const page = impl_->Resolve(ref);
  if (page == nullptr || page->state != PageState::kSsd) return false;
  const Impl::Change change(*impl_, *ref.node);
  page->state = PageState::kPromoting;
  ++ref.node->pins;  // the session may end while the page is read
  return true;
}

void PrefixIndex::FinishPromotion(const PageRef& ref, block::Extent extent) {
  const base::MutexLock lock(impl_->mutex);
  Page* const page = impl_->Resolve(ref);
  {
    const Impl::Change change(*impl_, *ref.node);
    page->extent = extent;
    page->state = page->ssd_sequence != 0 ? PageState::kRamAndSsd : PageState::kRam;
    --ref.node->pins;
  }
  impl_->Settle(ref.node);
  impl_->promoted.NotifyAll();
}

void PrefixIndex::FailPromotion(const PageRef& ref, PromotionFailure failure) {
  const base::MutexLock lock(impl_->mutex);
  Page* const page = impl_->Resolve(ref);
  {
    const Impl::Change change(*impl_, *ref.node);
    page->state = PageState::kSsd;
    if (failure == PromotionFailure::kCorrupt || page->ssd_sequence == 0) impl_->FreePage(*page);
    --ref.node->pins;
  }
  impl_->Settle(ref.node);
  impl_->promoted.NotifyAll();
}

PageInfo PrefixIndex::WaitWhilePromoting(const PageRef& ref, base::Deadline deadline) const {
  const base::MutexLock lock(impl_->mutex);
  bool in_time = true;
  while (true) {
    const Page* const page = impl_->Resolve(ref);
    if (page == nullptr) return {.ref = ref};
    if (page->state != PageState::kPromoting || !in_time) return InfoOf(*ref.node, *page);
    in_time = impl_->promoted.WaitUntil(impl_->mutex, deadline);
  }
}

}  // namespace prefixd::index
