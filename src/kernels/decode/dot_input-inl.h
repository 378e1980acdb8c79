// What dots of stored codes and small integers take, for one SIMD target: included once per target.
#if defined(PREFIXD_KERNELS_DECODE_DOT_INPUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_DOT_INPUT_INL_H_
#undef PREFIXD_KERNELS_DECODE_DOT_INPUT_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_DOT_INPUT_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/decode/ask-inl.h"
#include "kernels/decode/job.h"

#if PREFIXD_KERNELS_HAVE_DECODE
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

inline constexpr uint32_t kLanes = hn::MaxLanes(DF());

using DBytes = hn::Repartition<uint8_t, DI>;

enum class CodeKind { kBytes, kSignedBytes, kNibbles };

// GCC keeps such arrays in registers only where a pragma unrolls every loop over them.
template <size_t kRows, size_t kVectors>
struct DotSums {
  VI of[kRows][kVectors];
  HWY_INLINE DotSums() {}  // GCC builds its own one without the target's instructions
};
template <size_t kRows, size_t kVectors>
HWY_INLINE void ClearDots(DotSums<kRows, kVectors>* sums) {
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) sums->of[r][v] = hn::Zero(DI());
  }
}

// Input of dots: `steps` steps of registers of codes, and the factors of some rows.
struct DotInput {
  const std::byte* codes[2] = {};  // keys: the tile's first and second 32 tokens; values: [0]
  size_t stride = 0;               // bytes from a step to the next one
  LineAsker* asker = nullptr;
  size_t steps = 0;
  const int8_t* factors = nullptr;  // in the form of StoreFactors
  size_t row_pitch = 0;             // bytes of factors from a row to the next
  size_t digit_pitch = 0;           // bytes of factors from a digit to the next
};

HWY_INLINE VI LoadCodes(const std::byte* from) {
  return hn::BitCast(DI(), hn::LoadU(DBytes(), reinterpret_cast<const uint8_t*>(from)));
}
// Adds 128 to signed bytes.
HWY_INLINE VI AsUnsigned(VI codes) {
  return hn::Xor(codes, hn::Set(DI(), static_cast<int32_t>(0x80808080)));
}
// Returns what the middle of the codes' range is in the form that dots multiply.
HWY_INLINE float MiddleOf(const DecodeTensor& tensor) {
  return PREFIXD_KERNELS_HAVE_SDOT && tensor.bits == 8 ? 0.0f : tensor.middle;
}
HWY_INLINE VI SetWord(const int8_t* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof(word));
  return hn::Set(DI(), word);
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
