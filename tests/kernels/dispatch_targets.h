// Runs a check on every SIMD target that this machine has. For tests of kernels/.
#pragma once
#include <cstdint>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "hwy/targets.h"

#include "kernels/attention.h"
#include "kernels/prefill/matrix_tiles.h"

namespace prefixd::kernels {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// check: called with the target's name, while every kernel dispatches to it. A target with tile
// registers comes twice, with and without them.
template <typename Check>
void ForEachTargetOf(int64_t targets, const Check& check) {
  const int64_t supported = hwy::SupportedTargets();
  std::set<std::string> seen;  // a target that was not compiled falls back on one that was
  for (int64_t left = supported & targets; left != 0; left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left & -left);
    hwy::GetChosenTarget().Update(left & -left);
    for (const bool matrix_tiles : {true, false}) {
      AllowMatrixTiles(matrix_tiles);
      if (!seen.insert(AttentionTarget()).second) continue;
      SCOPED_TRACE(AttentionTarget());
      check(AttentionTarget());
    }
  }
  AllowMatrixTiles(true);
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(supported);
}

template <typename Check>
void ForEachTarget(const Check& check) {
  ForEachTargetOf(~int64_t{0}, check);
}

// For long checks: in sanitized builds without targets of few lanes, whose checked products take
// minutes. Short checks have all of them.
template <typename Check>
void ForEachQuickTarget(const Check& check) {
  const int64_t wide = HWY_ARCH_X86 ? int64_t{HWY_AVX2} | (int64_t{HWY_AVX2} - 1) : ~int64_t{0};
  ForEachTargetOf(kSanitized && (hwy::SupportedTargets() & wide) != 0 ? wide : ~int64_t{0}, check);
}

}  // namespace prefixd::kernels
