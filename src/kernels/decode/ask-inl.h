// Asks memory for the lines of units that are read soon, for one SIMD target: included once per
// target.
//
// A core waits for few lines at a time. So lines are asked for evenly all along the work, some in
// every loop, and not where they are read. They are brought into the L2 cache some units ahead, and
// from there into the L1 cache half a unit ahead. Where a loop reads lines that are in L2 only,
// each read waits behind all lines on their way from memory, and the products wait for the read:
// 13.9 instead of 15.4 GB/s in a loop of loads and products; the loads alone reach 16.5.
//
// Those figures are of a Xeon. On Zen 5 the order of far lines counts as well: those of a whole
// block in the order of its bytes come faster than unit by unit (part.cc).
#if defined(PREFIXD_KERNELS_DECODE_ASK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_ASK_INL_H_
#undef PREFIXD_KERNELS_DECODE_ASK_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_ASK_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Lines to ask for at a time in the loops of a tile: as many as memory gives in a step's time.
inline constexpr size_t kLinesToDot = 1;        // each register of codes
inline constexpr size_t kLinesToDotGroup = 12;  // a group of some registers of codes
inline constexpr size_t kLinesToDotRaw = 16;    // 4 tokens of plain numbers
inline constexpr size_t kLinesToWeigh = 6;      // each row head
inline constexpr size_t kLinesToScale = 5;      // each row head and group
inline constexpr size_t kLinesToRound = 5;      // each row head and group
inline constexpr size_t kLinesToWiden = 12;     // each of keys and values

inline constexpr size_t kLine = 64;

// Asks for kLines lines. kLocality: 2 into L2, 3 into L1.
template <int kLocality, size_t kLines>
HWY_INLINE void AskForLines(uintptr_t first) {
#pragma GCC unroll 16
  for (size_t i = 0; i < kLines; ++i) {
    __builtin_prefetch(reinterpret_cast<const void*>(first + i * kLine), /*rw=*/0, kLocality);
  }
}

template <int kLocality, size_t kLines>
class PacedLines;

// Asks for the lines of two ranges of bytes, one after the other.
template <int kLocality>
class LinesAhead {
 public:
  // Asks only for the line of `idle`, again and again, which costs no time.
  explicit HWY_INLINE LinesAhead(const std::byte* idle)
      : next_(reinterpret_cast<uintptr_t>(idle)) {}
  HWY_INLINE LinesAhead(const std::byte* first, size_t first_bytes, const std::byte* second,
                        size_t second_bytes)
      : next_(reinterpret_cast<uintptr_t>(first)),
        end_(next_ + first_bytes),
        second_(reinterpret_cast<uintptr_t>(second)),
        second_end_(second_ + second_bytes),
        step_(kLine) {}

  template <size_t kLines>
  HWY_INLINE void Ask() {
    AskForLines<kLocality, kLines>(next_);
    next_ += kLines * step_;
    if (next_ >= end_) TakeSecond();
  }
  // Asks for all lines that are left.
  HWY_INLINE void AskAll() {
    while (step_ != 0) Ask<4>();
  }

 private:
  template <int, size_t>
  friend class PacedLines;

  HWY_INLINE void TakeSecond() {
    if (second_ == 0) step_ = 0;
    next_ = second_ == 0 ? end_ - kLine : second_;
    end_ = second_ == 0 ? ~uintptr_t{0} : second_end_;
    second_ = 0;
  }

  uintptr_t next_ = 0, end_ = ~uintptr_t{0};
  uintptr_t second_ = 0, second_end_ = 0;
  size_t step_ = 0;
};

// The same lines for work that asks in turns of kLines lines, so that one address changes once a
// turn. When no line is left it asks for some lines again and again.
template <int kLocality, size_t kLines>
class PacedLines {
 public:
  explicit HWY_INLINE PacedLines(const LinesAhead<kLocality>& lines)
      : next_(lines.next_),
        end_(lines.step_ == 0 ? next_ + 1 : lines.end_),
        second_(lines.second_),
        second_end_(lines.second_end_),
        idle_(next_) {}
  // Returns what is left to be asked for.
  HWY_INLINE LinesAhead<kLocality> Rest() const {
    LinesAhead<kLocality> rest(reinterpret_cast<const std::byte*>(idle_));
    if (end_ == idle_ + 1) return rest;
    rest.next_ = next_;
    rest.end_ = end_;
    rest.second_ = second_;
    rest.second_end_ = second_end_;
    rest.step_ = kLine;
    return rest;
  }

  // Asks for lines [kFirst, kEnd) of the turn.
  template <size_t kFirst, size_t kEnd>
  HWY_INLINE void Ask() const {
    AskForLines<kLocality, kEnd - kFirst>(next_ + kFirst * kLine);
  }
  HWY_INLINE void EndTurn() {
    next_ += kLines * kLine;
    if (next_ >= end_) TakeSecond();
  }

 private:
  HWY_INLINE void TakeSecond() {
    next_ = second_ == 0 ? idle_ : second_;
    end_ = second_ == 0 ? idle_ + 1 : second_end_;
    second_ = 0;
  }

  uintptr_t next_, end_, second_, second_end_, idle_;
};

using NearLines = LinesAhead<3>;
using FarLines = LinesAhead<2>;

// Asks for near lines (to L1) and far ones (to L2). Copy it to a local for a loop: a member would
// be stored again and again.
class LineAsker {
 public:
  HWY_INLINE LineAsker(const NearLines& near, const FarLines& far) : near_(near), far_(far) {}
  template <size_t kLines>
  HWY_INLINE void Ask() {
    near_.template Ask<kLines>();
    far_.template Ask<kLines>();
  }
  // For loops where no unit is near.
  template <size_t kLines>
  HWY_INLINE void AskFar() {
    far_.template Ask<kLines>();
  }
  HWY_INLINE void AskAll() {
    near_.AskAll();
    far_.AskAll();
  }

 private:
  NearLines near_;
  FarLines far_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that flips with the target
