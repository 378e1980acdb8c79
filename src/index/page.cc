#include "index/page.h"

#include <cstdio>
#include <cstdlib>

namespace prefixd::index {
namespace {

uint32_t Units(uint64_t bytes) {
  const uint64_t units = bytes / block::kExtentUnit;
  if (bytes % block::kExtentUnit != 0 || units > ~uint32_t{0}) {
    std::fprintf(stderr, "index: an extent of %llu bytes or at it is not in units of %llu\n",
                 static_cast<unsigned long long>(bytes),
                 static_cast<unsigned long long>(block::kExtentUnit));
    std::abort();
  }
  return static_cast<uint32_t>(units);
}

}  // namespace

void Page::set_extent(const block::Extent& extent) {
  if (!extent && !in_use()) return;
  PageUse& mine = Use();
  mine.extent_place = Units(extent.offset);
  mine.extent_units = Units(extent.bytes);
}

void Page::DropExtent() {
  if (!in_use()) return;
  PageUse& mine = use();
  mine.extent_place = mine.extent_units = 0;
  mine.marks = nullptr;
  mine.moving = false;
}

void Page::set_sizes(uint16_t sizes) {
  if (!in_use() && FitsBare(0, sizes)) {
    SetBare(bare_sequence(), sizes);
  } else {
    Use().sizes = sizes;
  }
}

void Page::set_ssd_sequence(uint64_t sequence) {
  if (in_use()) {
    use().ssd_sequence = sequence;
  } else if (FitsBare(sequence, 0)) {
    SetBare(sequence, sizes());
  } else {
    PageUse& mine = Use();
    mine.ssd_sequence = sequence;
    mine.state = PageState::kSsd;
  }
}

PageUse& Page::MakeUse() {
  auto* const fresh =
      new PageUse{.ssd_sequence = ssd_sequence(), .sizes = sizes(), .state = state()};
  in_use_ = 1;
  rest_ = reinterpret_cast<uint64_t>(fresh) & kAllRest;
  return *fresh;
}

void Page::Fold() {
  if (!in_use()) return;
  PageUse* const mine = &use();
  const bool needed = mine->extent_units != 0 || mine->marks != nullptr || mine->slots != 0 ||
                      mine->holders > 0 || mine->condemned ||
                      !FitsBare(mine->ssd_sequence, mine->sizes);
  const PageState bare = mine->ssd_sequence == 0 ? PageState::kGone : PageState::kSsd;
  if (needed || mine->state != bare) return;
  SetBare(mine->ssd_sequence, mine->sizes);
  delete mine;
}

void Page::Reset() {
  if (in_use()) delete &use();
  *this = Page(group(), rung());
}

void Page::Take(Page& other) {
  Reset();
  *this = other;
  other = Page(other.group(), other.rung());
}

}  // namespace prefixd::index
