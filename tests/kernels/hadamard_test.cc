// The Hadamard rotation against its definition, on every target.
#include "kernels/hadamard.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "quant/format.h"
#include "tests/kernels/dispatch_targets.h"
#include "tests/kernels/paged_layer.h"

namespace prefixd::kernels {
namespace {

const std::vector<uint32_t> kDims = {1, 2, 8, 16, 32, 64, 80, 96, 128, 192, 256, 512, 576, 1024};

// By the matrix, in double.
std::vector<double> ByMatrix(std::span<const float> row) {
  const uint32_t run = quant::HadamardBlock(static_cast<uint32_t>(row.size()));
  std::vector<double> out(row.size(), 0);
  for (uint32_t i = 0; i < row.size(); ++i) {
    for (uint32_t j = 0; j < run; ++j) {
      const bool negative = std::popcount(i % run & j) % 2 == 1;
      out[i] += (negative ? -1.0 : 1.0) * double{row[i / run * run + j]};
    }
    out[i] /= std::sqrt(double(run));
  }
  return out;
}

TEST(HadamardTest, ScalarDefinitionIsTheMatrix) {
  for (uint32_t dim : kDims) {
    std::vector<float> row = RandomFloats(dim, dim);
    const std::vector<double> want = ByMatrix(row);
    RotateRowScalar(row);
    for (uint32_t i = 0; i < dim; ++i) EXPECT_NEAR(double{row[i]}, want[i], 4e-6) << dim;
  }
}

TEST(HadamardTest, EveryTargetGivesTheBitsOfTheDefinitionAndWritesNothingElse) {
  ForEachTarget([](const char*) {
    for (uint32_t dim : kDims) {
      const size_t count = 3, stride = dim + 5;
      for (size_t shift : {0, 1}) {  // misaligned too
        std::vector<float> rows = RandomFloats(shift + count * stride, 7);
        std::vector<float> want = rows;
        for (size_t i = 0; i < count; ++i) {
          RotateRowScalar({want.data() + shift + i * stride, dim});
        }
        RotateRows(rows.data() + shift, count, stride, dim);
        EXPECT_EQ(std::memcmp(rows.data(), want.data(), rows.size() * sizeof(float)), 0)
            << "dim " << dim << ", shift " << shift;
      }
    }
  });
}

TEST(HadamardTest, RotationIsItsOwnInverseAndKeepsProducts) {
  for (uint32_t dim : kDims) {
    const std::vector<float> a = RandomFloats(dim, 1), b = RandomFloats(dim, 2);
    std::vector<float> turned_a = a, turned_b = b;
    RotateRows(turned_a.data(), 1, dim, dim);
    RotateRows(turned_b.data(), 1, dim, dim);
    double product = 0, turned = 0;
    for (uint32_t i = 0; i < dim; ++i) {
      product += double{a[i]} * double{b[i]};
      turned += double{turned_a[i]} * double{turned_b[i]};
    }
    EXPECT_NEAR(turned, product, 2e-5 * std::sqrt(dim)) << dim;
    RotateRows(turned_a.data(), 1, dim, dim);
    for (uint32_t i = 0; i < dim; ++i) EXPECT_NEAR(turned_a[i], a[i], 4e-6) << dim;
  }
}

TEST(HadamardTest, AnOutlierIsSpreadOverItsRunAndNoFurther) {
  std::vector<float> row(96, 0.0f);
  row[40] = 32.0f;  // runs of 32: the second
  RotateRows(row.data(), 1, 96, 96);
  for (uint32_t i = 0; i < 96; ++i) {
    EXPECT_NEAR(std::fabs(row[i]), i / 32 == 1 ? std::sqrt(32.0f) : 0.0f, 1e-5f) << i;
  }
}

}  // namespace
}  // namespace prefixd::kernels
