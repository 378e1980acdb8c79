// A page of a block, in 16 bytes while it is on SSD only and nobody holds it.
//
// Internal to index/. Plain data without locks; every field is guarded by the index's mutex.
#pragma once
#include <cstdint>

#include "block/arena_file.h"
#include "block/extent.h"
#include "block/layer_group.h"
#include "index/allocated.h"
#include "index/prefix_index.h"

namespace prefixd::index {

// The part of a page that exists while the page is in RAM or held, or while its sizes number or its
// SSD sequence is too large for a Page.
struct PageUse {
  uint32_t extent_place = 0, extent_units = 0;  // of kExtentUnit bytes; 0 units: no extent
  uint64_t ssd_sequence = 0;
  block::PageMarks* marks = nullptr;  // of the extent; nullptr when it has none
  uint64_t slots = 0;    // slots that took hold since the page was last unheld; as marks->holders
  uint32_t holders = 0;  // number of HeldPaths
  uint16_t sizes = 0;
  bool moving : 1 = false;     // PickMovable returned it; cleared when the extent changes
  bool condemned : 1 = false;  // a bad copy's extent waits in Impl::condemned for the last holder
  PageState state = PageState::kGone;
};
static_assert(sizeof(PageUse) == 40);

// Copying copies the bytes, with the address of the PageUse: whoever drops a page calls Reset, and
// whoever moves one calls Take.
class Page {
 public:
  Page() = default;
  Page(uint32_t group, uint32_t rung) : group_(group & 63), rung_(rung & 255) {}

  uint64_t check = 0;

  uint16_t group() const { return group_; }
  uint16_t rung() const { return rung_; }  // a snapshot's offset
  // Number of the page's sizes in Space::sizes.
  uint16_t sizes() const { return in_use() ? use().sizes : bare_sizes(); }
  void set_sizes(uint16_t sizes);

  PageState state() const {
    if (in_use()) return use().state;
    return bare_sequence() == 0 ? PageState::kGone : PageState::kSsd;
  }
  void set_state(PageState state) {
    if (state != this->state()) Use().state = state;
  }
  // Not empty if InRam(state), in kUnverified, and in kPromoting from kUnverified.
  block::Extent extent() const {
    if (!in_use()) return {};
    return {use().extent_place * block::kExtentUnit, use().extent_units * block::kExtentUnit};
  }
  bool has_extent() const { return in_use() && use().extent_units != 0; }
  // Requires: whole units, within the first 16 TiB.
  void set_extent(const block::Extent& extent);
  void DropExtent();  // drops the marks too
  // 0: no copy on SSD. In kPromoting from kSsd 0 means that the copy was dropped while it was read.
  uint64_t ssd_sequence() const { return in_use() ? use().ssd_sequence : bare_sequence(); }
  // Without a PageUse this also sets the state: kGone if 0, else kSsd.
  void set_ssd_sequence(uint64_t sequence);
  block::PageMarks* marks() const { return in_use() ? use().marks : nullptr; }
  uint64_t slots() const { return in_use() ? use().slots : 0; }
  uint32_t holders() const { return in_use() ? use().holders : 0; }
  bool moving() const { return in_use() && use().moving; }
  bool condemned() const { return in_use() && use().condemned; }

  PageUse& Use() { return in_use() ? use() : MakeUse(); }  // makes one if there is none
  void Fold();  // deletes the PageUse if the Page itself can say what it says
  // Makes the page kGone and empty, of the same group and rung. Deletes its PageUse.
  void Reset();
  // Moves everything of `other`, a page of the same group and rung, here. `other` is empty then.
  void Take(Page& other);
  uint64_t UseBytes() const { return in_use() ? Allocated(sizeof(PageUse)) : 0; }

  // Prefetch the PageUse, or the marks (which reads the PageUse): of many pages neither is in a CPU
  // cache. (GCC drops calls of functions that do nothing else, so they are always inlined.)
  [[gnu::always_inline]] void AskForUse() const {
    if (in_use()) __builtin_prefetch(&use());
  }
  [[gnu::always_inline]] void AskForMarks() const {
    if (in_use()) __builtin_prefetch(use().marks);  // nullptr is no fault
  }

 private:
  PageUse& MakeUse();
  static constexpr int kSizesBits = 13;  // the high bits of rest_; the SSD sequence is below them
  static constexpr int kRestBits = 49, kSequenceBits = kRestBits - kSizesBits;
  static constexpr uint64_t kAllRest = (uint64_t{1} << kRestBits) - 1;

  // Sequences fit until a store was opened 65,536 times or has taken 280 TB in pages of 4 KiB.
  static bool FitsBare(uint64_t sequence, uint16_t sizes) {
    return sequence >> kSequenceBits == 0 && sizes >> kSizesBits == 0;
  }
  bool in_use() const { return in_use_ != 0; }
  PageUse& use() const { return *reinterpret_cast<PageUse*>(rest_); }
  uint64_t bare_sequence() const { return rest_ & ((uint64_t{1} << kSequenceBits) - 1); }
  uint16_t bare_sizes() const { return static_cast<uint16_t>(rest_ >> kSequenceBits); }
  void SetBare(uint64_t sequence, uint16_t sizes) {
    in_use_ = 0;
    rest_ = (uint64_t{sizes} << kSequenceBits | sequence) & kAllRest;
  }

  uint64_t in_use_ : 1 = 0;
  uint64_t group_ : 6 = 0;  // below block::kMaxGroups
  uint64_t rung_ : 8 = 0;
  uint64_t rest_ : kRestBits = 0;  // in_use_: the address of the PageUse; else sizes and sequence
};
static_assert(sizeof(Page) == 16 && block::kMaxGroups <= 64);

inline bool Present(const Page& page) { return page.state() != PageState::kGone; }
inline bool OnSsd(const Page& page) { return page.ssd_sequence() != 0; }
// Returns true if the page is being written out, read back or not checked yet: nothing may move it.
inline bool Busy(PageState s) {
  return s == PageState::kSpilling || s == PageState::kPromoting || s == PageState::kUnverified;
}

}  // namespace prefixd::index
