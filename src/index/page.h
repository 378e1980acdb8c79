// A page of a block, in 20 bytes while it is on SSD only and nobody holds it.
//
// Internal to index/. Plain data without locks; every field is guarded by the index's mutex.
#pragma once
#include <cstdint>

#include "block/arena_file.h"
#include "block/extent.h"
#include "index/prefix_index.h"

namespace prefixd::index {

// What a page has beside its check and its SSD copy while it is in RAM or somebody holds it.
struct PageUse {
  uint32_t extent_place = 0, extent_units = 0;  // of kExtentUnit bytes; 0 units: no extent
  uint64_t ssd_sequence = 0;
  block::PageMarks* marks = nullptr;  // of the extent; nullptr when it has none
  uint64_t slots = 0;    // whose bits are set since the last holder went; what marks->holders says
  uint32_t holders = 0;  // leases
  bool moving = false;   // picked for a move; cleared when the extent changes
  bool condemned = false;  // an extent of it waits in Impl::condemned for its last holder
  PageState state = PageState::kGone;
};
static_assert(sizeof(PageUse) == 40);

// Copied as bytes: whoever drops a page or leaves it behind calls Reset or Take.
class [[gnu::packed, gnu::aligned(4)]] Page {
 public:
  Page() = default;
  Page(uint32_t group, uint32_t rung)
      : group(static_cast<uint8_t>(group)), rung(static_cast<uint8_t>(rung)) {}

  uint8_t group = 0;   // at most block::kMaxGroups
  uint8_t rung = 0;    // of a snapshot: its offset in the block
  uint16_t sizes = 0;  // in Space::sizes
  uint64_t check = 0;

  PageState state() const {
    if (in_use()) return use().state;
    return place_ == 0 ? PageState::kGone : PageState::kSsd;
  }
  void set_state(PageState state) {
    if (state != this->state()) Use().state = state;
  }
  // InRam(state), kUnverified, or kPromoting from kUnverified: there is one.
  block::Extent extent() const {
    if (!in_use()) return {};
    return {use().extent_place * block::kExtentUnit, use().extent_units * block::kExtentUnit};
  }
  bool has_extent() const { return in_use() && use().extent_units != 0; }
  // Requires: whole units, within the first 16 TiB.
  void set_extent(const block::Extent& extent);
  void DropExtent();  // and its marks
  // 0: no copy on SSD; kPromoting with 0 also: it was dropped while it was read.
  uint64_t ssd_sequence() const { return in_use() ? use().ssd_sequence : place_ >> 1; }
  // Of a page that is on SSD only or gone, this decides which.
  void set_ssd_sequence(uint64_t sequence);
  block::PageMarks* marks() const { return in_use() ? use().marks : nullptr; }
  uint64_t slots() const { return in_use() ? use().slots : 0; }
  uint32_t holders() const { return in_use() ? use().holders : 0; }
  bool moving() const { return in_use() && use().moving; }
  bool condemned() const { return in_use() && use().condemned; }

  PageUse& Use();  // made if there is none
  void Fold();     // without its PageUse, if that says nothing
  // As one that was never there, of the same group and rung.
  void Reset();
  // Everything of another page of the same group and rung, which is Reset.
  void Take(Page & other);
  uint64_t UseBytes() const;

 private:
  static constexpr uint64_t kUsed = 1;

  bool in_use() const { return (place_ & kUsed) != 0; }
  PageUse& use() const { return *reinterpret_cast<PageUse*>(place_ - kUsed); }

  uint64_t place_ = 0;  // its SSD sequence doubled, or the address of its PageUse and kUsed
};
static_assert(sizeof(Page) == 20);

inline bool Present(const Page& page) { return page.state() != PageState::kGone; }
inline bool OnSsd(const Page& page) { return page.ssd_sequence() != 0; }
// Being written out, read back or not checked yet: nothing may move it.
inline bool Busy(PageState s) {
  return s == PageState::kSpilling || s == PageState::kPromoting || s == PageState::kUnverified;
}

}  // namespace prefixd::index
