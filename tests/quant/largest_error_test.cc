// How far a single value may be off.
#include <algorithm>
#include <random>

#include "tests/quant/golden.h"

namespace prefixd::quant {
namespace {

// S1-28: at most a step of its own group, with a float's rounding; on normal data the largest of a
// million is that of the widest group.
TEST(LargestErrorTest, NoValueIsOffByMoreThanTheStepOfItsGroup) {
  constexpr uint32_t kDim = 128, kRows = 8192;
  std::mt19937 random(28);
  std::normal_distribution<float> normal;
  std::vector<float> values(size_t{kRows} * kDim);
  for (float& value : values) value = normal(random);
  struct Case {
    uint8_t bits;
    double least, most;  // of the largest error, over 10^6 values
  };
  for (const Case& c : {Case{8, 0.019, 0.034}, Case{4, 0.33, 0.57}}) {
    const TensorFormat format = MlxAffineFormat(c.bits, 64, Dtype::kF32);
    const std::vector<float> back =
        DequantizeRows(format, QuantizeRows(format, values, kDim), kDim, kRows);
    double largest = 0;
    for (size_t begin = 0; begin < values.size(); begin += 64) {
      const auto group = std::span(values).subspan(begin, 64);
      const auto [low, high] = std::minmax_element(group.begin(), group.end());
      const double step = (static_cast<double>(*high) - *low) / ((1 << c.bits) - 1);
      for (size_t i = 0; i < 64; ++i) {
        const double error = std::abs(static_cast<double>(back[begin + i]) - group[i]);
        // The scale is stretched so that zero is a code: by up to a step over the whole range.
        ASSERT_LE(error, step * (1 + 1.0 / ((1 << c.bits) - 1)) + 1e-6) << int{c.bits} << " bits";
        largest = std::max(largest, error);
      }
    }
    EXPECT_GT(largest, c.least) << int{c.bits} << " bits";
    EXPECT_LT(largest, c.most) << int{c.bits} << " bits";
  }
}

}  // namespace
}  // namespace prefixd::quant
