#include "kernels/prefill/attend_slice.h"

#include <algorithm>
#include <type_traits>

#include "kernels/common/simd_targets.h"
#include "kernels/prefill/matrix_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/prefill/attend_slice.cc"
#include "hwy/foreach_target.h"  // before the -inl.h files: it includes this file once per target
#include "hwy/highway.h"

#include "kernels/prefill/attend_codes-inl.h"
#include "kernels/prefill/attend_floats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

#if PREFIXD_KERNELS_HAVE_PAIRS
template <class Digits>
HWY_ATTR void RunOnCodes(const AttendJob& job, const AttendSlice& slice,
                         const AttendScratch& scratch) {
  const TokenKind kind = job.any_raw ? TokenKind::kCodes : TokenKind::kAny;
  // Vectors and tile registers give the same bits.
  if (!FitsMatrices(job) || !HaveMatrixTiles()) {
    return CodeAttention<Digits, VectorProducts<Digits>>(job, slice, scratch, kind).Run();
  }
  const TileRegisters registers;
  CodeAttention<Digits, MatrixProducts<Digits>>(job, slice, scratch, kind).Run();
}
#endif

HWY_ATTR void RunSliceOnTarget(const AttendJob& job, const AttendSlice& slice,
                               const AttendScratch& scratch) {
#if PREFIXD_KERNELS_HAVE_PAIRS
  if (job.codes()) {
    if (job.shape.mode == AttentionMode::kPrecise) {
      RunOnCodes<Digits<2>>(job, slice, scratch);
    } else {
      RunOnCodes<Digits<1>>(job, slice, scratch);
    }
    if (job.any_raw) FloatAttention(job, slice, scratch, TokenKind::kRaw).Run();
    return;
  }
#endif
  FloatAttention(job, slice, scratch, TokenKind::kAny).Run();
}

bool TargetMultipliesCodes() { return PREFIXD_KERNELS_HAVE_PAIRS != 0; }

const char* NameOfTarget() {
#if PREFIXD_KERNELS_HAVE_PAIRS
  if (HaveMatrixTiles()) return "AVX3_DL, AMX";
#endif
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace prefixd::kernels {
namespace {

HWY_EXPORT(RunSliceOnTarget);
HWY_EXPORT(TargetMultipliesCodes);
HWY_EXPORT(NameOfTarget);

size_t RoundUp(size_t count, size_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

}  // namespace

AttendScratch::AttendScratch(const AttendJob& job, size_t row_heads, std::byte* memory)
    : key_pitch(RoundUp(job.shape.key_dim, 16)), value_pitch(RoundUp(job.shape.value_dim, 16)) {
  const auto take = [&](auto*& part, size_t count) {
    if (memory != nullptr)
      part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(memory + bytes);
    bytes += RoundUp(count * sizeof(*part), kAlignment);
  };
  const size_t widest = std::max(key_pitch, value_pitch);
  take(sums, row_heads * value_pitch);
  take(states, row_heads);
  take(scores, kStripRows * kTileTokens);
  take(rows.scales, kStepTokens * (widest / 32 + 1));
  take(rows.biases, kStepTokens * (widest / 32 + 1));
  take(rows.codes, widest);
  if (job.floats()) {
    take(query, row_heads * key_pitch);
    take(keys, key_pitch * kTileTokens);
    take(values, kTileTokens * value_pitch);
    take(key_rows, kStepTokens * key_pitch);
  }
  if (!job.codes()) return;
  const size_t key_groups = job.shape.key_dim / job.key_group;
  const size_t value_groups = job.shape.value_dim / job.value_group;
  // A tile register loads at least 64 bytes of a group's factors.
  take(code.query,
       2 * (row_heads + kStripRows) * std::max<size_t>(job.shape.key_dim, key_groups * 64));
  take(code.query_steps, row_heads + kStripRows);
  take(code.query_sums, row_heads * key_groups);
  take(code.keys, key_pitch / 4 * kTileTokens);
  take(code.values, kTileTokens / 4 * value_pitch);
  take(code.rows, kStepTokens * widest);
  take(code.key_scales, key_groups * kTileTokens);
  take(code.key_biases, key_groups * kTileTokens);
  take(code.value_scales, value_groups * kTileTokens);
  take(code.value_biases, value_groups * kTileTokens);
  take(code.value_signs, value_groups * kTileTokens);
  take(code.dots, 2 * kStripRows * std::max<size_t>(kTileTokens, job.value_group));
  take(code.weights, 2 * value_groups * kStripRows * kTileTokens);
  take(code.value_inverses, value_groups * kStripRows);
  take(code.value_steps, value_groups * kStripRows);
  take(code.totals, row_heads);
  take(code.ones, row_heads + kStripRows);
  if (memory != nullptr) std::fill_n(code.ones, row_heads + kStripRows, 1.0f);
  take(code.maxima, row_heads + kStripRows);
  take(code.weight_sums, row_heads * 16);
  take(code.bias_sums, row_heads * value_groups * 16);
  take(code.row_lanes, kStripRows * 16);
  take(code.largest_weights, kStripRows);
  take(code.largest_scales, value_groups);
}

size_t AttendScratch::Bytes(const AttendJob& job, size_t row_heads) {
  return AttendScratch(job, row_heads, nullptr).bytes;
}

void RunSlice(const AttendJob& job, const AttendSlice& slice, const AttendScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(RunSliceOnTarget)(job, slice, scratch);
}

bool MultipliesCodes() { return HWY_DYNAMIC_DISPATCH(TargetMultipliesCodes)(); }

const char* AttentionTarget() { return HWY_DYNAMIC_DISPATCH(NameOfTarget)(); }

}  // namespace prefixd::kernels
#endif  // HWY_ONCE
