// Attend against AttendScalar, and bits against bits. For tests of kernels/.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "tests/kernels/paged_layer.h"

namespace prefixd::kernels {

// Float sums of normal values against double ones on the same dequantized values: attention's
// result is a mean, so errors are stated against the largest value in the result.
inline constexpr double kErrorBound = 3e-4;

// Dense, scale 1/sqrt(key_dim), `group` query heads for each kv head.
AttentionShape ShapeOf(const LayerShape& layer, uint32_t group, uint32_t rows, uint32_t first);

size_t QueryFloats(const AttentionShape& shape);
size_t OutFloats(const AttentionShape& shape);

// Attend's result; failures of Attend are the test's.
std::vector<float> MustAttend(const PagedLayer& layer, const float* q, const AttentionShape& shape);
// AttendScalar's.
std::vector<float> Expected(const PagedLayer& layer, const float* q, const AttentionShape& shape);

// The largest difference over the largest wanted value; infinite when there is a NaN.
double RelativeError(const std::vector<float>& got, const std::vector<float>& want);
// Root mean square of the error over that of the result.
double RelativeRms(const std::vector<float>& got, const std::vector<float>& want);
bool SameBits(const std::vector<float>& a, const std::vector<float>& b);

// For seeded queries.
void ExpectLikeScalarOnEveryTarget(const PagedLayer& layer, const AttentionShape& shape,
                                   double bound = kErrorBound);

}  // namespace prefixd::kernels
