#include "index/page.h"

#include <cstdio>
#include <cstdlib>

#include "index/allocated.h"

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
  if (!extent && !in_use_) return;
  PageUse& mine = Use();
  mine.extent_place = Units(extent.offset);
  mine.extent_units = Units(extent.bytes);
}

void Page::DropExtent() {
  if (!in_use_) return;
  PageUse& mine = use();
  mine.extent_place = mine.extent_units = 0;
  mine.marks = nullptr;
  mine.moving = false;
}

PageUse& Page::Use() {
  if (in_use_) return use();
  auto* const fresh = new PageUse{.ssd_sequence = place_};
  place_ = reinterpret_cast<uint64_t>(fresh);
  in_use_ = true;
  return *fresh;
}

void Page::Fold() {
  if (!in_use_) return;
  PageUse* const mine = &use();
  const bool needed = mine->extent_units != 0 || mine->marks != nullptr || mine->slots != 0 ||
                      mine->holders > 0 || mine->condemned;
  if (needed) return;
  place_ = mine->ssd_sequence;
  in_use_ = false;
  delete mine;
}

void Page::Reset() {
  if (in_use_) delete &use();
  *this = Page(group, rung);
}

void Page::Take(Page& other) {
  Reset();
  *this = other;
  other.in_use_ = false;
  other.Reset();
}

uint64_t Page::UseBytes() const { return in_use_ ? Allocated(sizeof(PageUse)) : 0; }

}  // namespace prefixd::index
