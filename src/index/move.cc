// Moving: a page that nobody holds gets another extent.
#include <algorithm>

#include "index/impl.h"

namespace prefixd::index {
namespace {

bool Movable(const Page& page) {
  return page.holders() == 0 &&
         (page.state() == PageState::kRam || page.state() == PageState::kRamAndSsd);
}

bool Within(block::Extent extent, uint64_t begin, uint64_t end) {
  return extent.offset >= begin && extent.offset < end;
}

}  // namespace

std::vector<PageInfo> PrefixIndex::PickMovable(uint64_t begin, uint64_t end) const {
  const base::MutexLock lock(impl_->mutex);
  std::vector<PageInfo> picked;
  for (Node* const node : impl_->nodes) {
    for (Page& page : node->pages()) {
      if (!Movable(page) || !Within(page.extent(), begin, end)) continue;
      page.Use().moving = true;
      picked.push_back(InfoOf(*node, page));
    }
  }
  return picked;
}

uint64_t PrefixIndex::CountImmovable(uint64_t begin, uint64_t end) const {
  const base::MutexLock lock(impl_->mutex);
  uint64_t count = 0;
  for (Node* const node : impl_->nodes) {
    for (const Page& page : node->pages()) {
      if (InRam(page.state()) && !Movable(page) && Within(page.extent(), begin, end)) ++count;
    }
  }
  return count;
}

bool PrefixIndex::FinishMove(const PageRef& ref, block::Extent from, block::Extent to,
                             block::PageMarks* marks) {
  const base::MutexLock lock(impl_->mutex);
  Page* const page = impl_->Resolve(ref);
  // Not `moving`: another copy stands in the old extent by now.
  if (page == nullptr || !page->moving() || page->extent() != from || !Movable(*page)) return false;
  const Impl::Change change(*impl_, *ref.node);
  const int64_t last_use =
      page->marks() == nullptr ? 0 : page->marks()->last_use.load(std::memory_order_relaxed);
  impl_->FreeExtent(*page);
  page->set_extent(to);
  page->Use().marks = marks;
  WriteMarks(*ref.node, *page, last_use);
  return true;
}

}  // namespace prefixd::index
