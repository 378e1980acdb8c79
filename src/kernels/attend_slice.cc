#include "kernels/attend_slice.h"

#include <algorithm>
#include <type_traits>

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attend_slice.cc"
#include "hwy/foreach_target.h"  // before the -inl.h files: it includes this file once per target
#include "hwy/highway.h"

#include "kernels/attend_codes-inl.h"
#include "kernels/attend_floats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

HWY_ATTR void RunSliceOnTarget(const AttendJob& job, const AttendSlice& slice,
                               const AttendScratch& scratch) {
#if PREFIXD_KERNELS_HAVE_PAIRS
  if (job.codes()) return CodeAttention(job, slice, scratch).Run();
#endif
  FloatAttention(job, slice, scratch).Run();
}

bool TargetMultipliesCodes() { return PREFIXD_KERNELS_HAVE_PAIRS != 0; }

const char* NameOfTarget() { return hwy::TargetName(HWY_TARGET); }

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
  take(scores, kMaxTileRows * kTileTokens);
  take(rows.scales, kStepTokens * (widest / 32 + 1));
  take(rows.biases, kStepTokens * (widest / 32 + 1));
  take(rows.codes, widest);
  if (!job.codes()) {
    take(query, row_heads * key_pitch);
    take(keys, key_pitch * kTileTokens);
    take(values, kTileTokens * value_pitch);
    take(key_rows, kStepTokens * key_pitch);
    return;
  }
  const size_t key_groups = job.shape.key_dim / job.key_group;
  const size_t value_groups = job.shape.value_dim / job.value_group;
  take(code.query, row_heads * key_pitch / 2);
  take(code.query_steps, row_heads);
  take(code.query_sums, row_heads * key_groups);
  take(code.keys, key_pitch / 2 * kTileTokens);
  take(code.values, kTileTokens / 2 * value_pitch);
  take(code.key_rows, kStepTokens * key_pitch / 2);
  take(code.value_rows, kStepTokens * value_pitch / 2);
  take(code.key_scales, key_groups * kTileTokens);
  take(code.key_biases, key_groups * kTileTokens);
  take(code.value_scales, value_groups * kTileTokens);
  take(code.value_biases, value_groups * kTileTokens);
  take(code.dots, key_groups * kMaxTileRows * kTileTokens);
  take(code.weights, value_groups * kMaxTileRows * kTileTokens / 2);
  take(code.value_steps, value_groups * kMaxTileRows);
  take(code.value_offsets, value_groups * kMaxTileRows);
  take(code.value_corrections, value_pitch);
  take(code.value_dots, kMaxTileRows * value_pitch);
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
