#include "tests/kernels/attention_checks.h"

#include <cmath>
#include <cstring>

#include "gtest/gtest.h"

#include "tests/kernels/dispatch_targets.h"

namespace prefixd::kernels {

AttentionShape ShapeOf(const LayerShape& layer, uint32_t group, uint32_t rows, uint32_t first) {
  return {.query_rows = rows,
          .query_heads = layer.kv_heads * group,
          .kv_heads = layer.kv_heads,
          .key_dim = layer.key_dim,
          .value_dim = layer.value_dim,
          .first_position = first,
          .scale = 1.0f / std::sqrt(static_cast<float>(layer.key_dim))};
}

size_t QueryFloats(const AttentionShape& shape) {
  return size_t{shape.query_rows} * shape.query_heads * shape.key_dim;
}
size_t OutFloats(const AttentionShape& shape) {
  return size_t{shape.query_rows} * shape.query_heads * shape.value_dim;
}

std::vector<float> MustAttend(const PagedLayer& layer, const float* q,
                              const AttentionShape& shape) {
  std::vector<float> out(OutFloats(shape), -77.0f);
  EXPECT_TRUE(Attend(layer.table(), layer.formats(), q, out.data(), shape).ok());
  return out;
}

std::vector<float> Expected(const PagedLayer& layer, const float* q, const AttentionShape& shape) {
  std::vector<float> out(OutFloats(shape));
  EXPECT_TRUE(AttendScalar(layer.table(), layer.formats(), q, out.data(), shape).ok());
  return out;
}

double RelativeError(const std::vector<float>& got, const std::vector<float>& want) {
  double largest = 0;
  double error = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::fmax(largest, std::fabs(double{want[i]}));
    const double difference = std::fabs(double{got[i]} - double{want[i]});
    error = std::isnan(difference) ? INFINITY : std::fmax(error, difference);
    if (std::isinf(error)) return error;
  }
  return error / largest;
}

void ExpectLikeScalarOnEveryTarget(const PagedLayer& layer, const AttentionShape& shape,
                                   double bound) {
  const std::vector<float> q = RandomFloats(QueryFloats(shape), 5);
  const std::vector<float> want = Expected(layer, q.data(), shape);
  ForEachQuickTarget([&](const char*) {
    EXPECT_LE(RelativeError(MustAttend(layer, q.data(), shape), want), bound);
  });
}

double RelativeRms(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    size += double{want[i]} * want[i];
  }
  return std::sqrt(error / size);
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace prefixd::kernels
