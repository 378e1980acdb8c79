// Moving: gives a page that nobody holds another extent.
#include <algorithm>

#include "index/impl.h"

namespace prefixd::index {
namespace {

bool Movable(const Page& page) {
  return page.holders() == 0 &&
         (page.state() == PageState::kRam || page.state() == PageState::kRamAndSsd);
}

}  // namespace

std::vector<PageInfo> PrefixIndex::PickMovable(uint64_t begin, uint64_t end,
                                               uint64_t* others) const {
  std::vector<PageInfo> picked;
  uint64_t immovable = 0;
  impl_->ForEachInSteps([&](Node& node) {
    for (Page& page : node.pages()) {
      const block::Extent extent = page.extent();
      if (!InRam(page.state()) || extent.offset < begin || extent.offset >= end) continue;
      if (!Movable(page)) {
        ++immovable;
        continue;
      }
      page.Use().moving = true;
      picked.push_back(InfoOf(node, page));
    }
  });
  if (others != nullptr) *others = immovable;
  return picked;
}

bool PrefixIndex::FinishMove(const PageRef& ref, block::Extent from, block::Extent to,
                             block::PageMarks* marks) {
  const base::MutexLock lock(impl_->mutex);
  Page* const page = impl_->Resolve(ref);
  // `moving` is cleared when a page loses its extent: another copy stands there then.
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
