// Asks memory for the lines of units that are read soon, for one SIMD target: included once per
// target.
//
// A core waits for few lines at a time. So lines are asked for evenly all along the work, some in
// every loop, and not where they are read. They are brought into the L2 cache some units ahead, and
// from there into the L1 cache half a unit ahead. Where a loop reads lines that are in L2 only,
// each read waits behind all lines on their way from memory, and the products wait for the read:
// 13.9 instead of 15.4 GB/s in a loop of loads and products; the loads alone reach 16.5.
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
inline constexpr size_t kLinesToDot = 1;      // each register of codes
inline constexpr size_t kLinesToDotRaw = 16;  // 4 tokens of plain numbers
inline constexpr size_t kLinesToWeigh = 6;    // each row head
inline constexpr size_t kLinesToScale = 5;    // each row head and group
inline constexpr size_t kLinesToRound = 5;    // each row head and group
inline constexpr size_t kLinesToWiden = 12;   // each of keys and values

// Asks for the lines of two ranges of bytes, one after the other. kLocality: 2 into L2, 3 into L1.
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
#pragma GCC unroll 16
    for (size_t i = 0; i < kLines; ++i) {
      __builtin_prefetch(reinterpret_cast<const void*>(next_ + i * kLine), /*rw=*/0, kLocality);
    }
    next_ += kLines * step_;
    if (next_ >= end_) TakeSecond();
  }
  // Asks for all lines that are left.
  HWY_INLINE void AskAll() {
    while (step_ != 0) Ask<4>();
  }

 private:
  static constexpr size_t kLine = 64;

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

// Asks for near lines (to L1) and far ones (to L2). Copy it to a local for a loop: a member would
// be stored again and again.
class LineAsker {
 public:
  HWY_INLINE LineAsker(const LinesAhead<3>& near, const LinesAhead<2>& far)
      : near_(near), far_(far) {}
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
  LinesAhead<3> near_;
  LinesAhead<2> far_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that flips with the target
