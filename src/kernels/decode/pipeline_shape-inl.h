// What pipelined decode is compiled for, and loops that are unrolled whole, for one SIMD target:
// included once per target.
#if defined(PREFIXD_KERNELS_DECODE_PIPELINE_SHAPE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_PIPELINE_SHAPE_INL_H_
#undef PREFIXD_KERNELS_DECODE_PIPELINE_SHAPE_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_PIPELINE_SHAPE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "hwy/highway.h"

#include "kernels/decode/ask-inl.h"
#include "kernels/decode/dot-inl.h"
#include "kernels/decode/job.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Marks a lambda that the compiler must put into its caller's loop.
#define PREFIXD_KERNELS_INLINE __attribute__((always_inline)) HWY_ATTR

// Calls body(std::integral_constant<size_t, i>()) for i = 0 ... kCount - 1.
template <size_t kCount, class Body>
HWY_INLINE void Unroll(const Body& body) {
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) PREFIXD_KERNELS_INLINE {
    (body(std::integral_constant<size_t, kIndex>()), ...);
  }
  (std::make_index_sequence<kCount>());
}

inline constexpr uint32_t kPipelineDim = 128;  // of keys and values

// A tile takes kStages stages: two halves of its keys' tokens, two halves of its values' channels.
// Each stage is a loop of kTurns turns. Unrolled whole, a tile would not fit the L1 code cache.
inline constexpr size_t kStages = 4;
inline constexpr size_t kTurns = 4;

template <CodeKind kKeyKind, uint32_t kKeyGroupSize, CodeKind kValueKind, uint32_t kValueGroupSize,
          uint32_t kDigitCount, bool kIsBiased>
struct PipelineShape {
  static constexpr CodeKind kKey = kKeyKind, kValue = kValueKind;
  static constexpr uint32_t kKeyGroup = kKeyGroupSize, kValueGroup = kValueGroupSize;
  static constexpr uint32_t kKeyGroups = kPipelineDim / kKeyGroup;
  static constexpr uint32_t kValueGroups = kPipelineDim / kValueGroup;
  static constexpr uint32_t kDigits = kDigitCount;
  static constexpr bool kKeyBiased = kIsBiased, kValueBiased = kIsBiased;
  // A step is 16 products. So many steps has one of kTurns turns of a stage.
  static constexpr size_t kSteps = 4 * kDigits;

  // Bytes of a tile.
  static constexpr size_t CodeBytes(CodeKind kind) {
    return size_t{kDecodeTile} * kPipelineDim / (kind == CodeKind::kNibbles ? 2 : 1);
  }
  static constexpr size_t ParameterBytes(uint32_t groups, bool biased) {
    return size_t{kDecodeTile} * groups * (biased ? 4 : 2);
  }
  // Cache lines of a tile for each turn of all kStages stages.
  static constexpr size_t kTurnLines =
      (CodeBytes(kKey) + CodeBytes(kValue) + ParameterBytes(kKeyGroups, kKeyBiased) +
       ParameterBytes(kValueGroups, kValueBiased)) /
      kLine / (kStages * kTurns);
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
