// Reading the golden vectors of tests/data: 64 rows of 256 columns, see the READMEs there.
#pragma once
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "quant/codec.h"

namespace prefixd::quant {

inline constexpr uint32_t kGoldenRows = 64;
inline constexpr uint32_t kGoldenDim = 256;

// `name`: "mlx/input_f32.bin", under tests/data. Empty, and a failed test, when it cannot be read.
inline std::vector<std::byte> ReadGolden(const std::string& name) {
  std::ifstream file(std::string(PREFIXD_TEST_DATA) + "/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << "tests/data/" << name << " cannot be read";
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

inline std::vector<float> ReadGoldenFloats(const std::string& name, Dtype dtype) {
  const std::vector<std::byte> bytes = ReadGolden(name);
  std::vector<float> values(bytes.size() / DtypeBytes(dtype));
  WidenToFloat(dtype, bytes.data(), values.size(), values.data());
  return values;
}

// All rows through QuantizeRow, as sections [rows][codes], [rows][scales], [rows][biases]: the
// order of MLX's files, and of a unit without its padding.
inline std::vector<std::byte> QuantizeRows(const TensorFormat& format,
                                           std::span<const float> values, uint32_t dim) {
  const uint32_t rows = static_cast<uint32_t>(values.size()) / dim;
  const UnitLayout layout = LayoutOfUnit(format, dim, rows);
  std::vector<std::byte> unit(layout.payload_bytes);
  for (uint32_t i = 0; i < rows; ++i) {
    QuantizeRow(format, values.subspan(size_t{i} * dim, dim),
                RowOf(unit.data(), layout, format, dim, i));
  }
  return unit;
}

inline std::vector<float> DequantizeRows(const TensorFormat& format,
                                         std::span<const std::byte> unit, uint32_t dim,
                                         uint32_t rows) {
  const UnitLayout layout = LayoutOfUnit(format, dim, rows);
  std::vector<float> values(size_t{rows} * dim);
  for (uint32_t i = 0; i < rows; ++i) {
    DequantizeRow(format, RowOf(unit.data(), layout, format, dim, i),
                  std::span(values).subspan(size_t{i} * dim, dim));
  }
  return values;
}

// Bytes [begin, begin + expected.size()) of `seen` equal `expected`; says where the first differs.
inline void ExpectSameBytes(std::span<const std::byte> seen, std::span<const std::byte> expected) {
  ASSERT_EQ(seen.size(), expected.size());
  for (size_t i = 0; i < seen.size(); ++i) {
    ASSERT_EQ(std::to_integer<int>(seen[i]), std::to_integer<int>(expected[i])) << "byte " << i;
  }
}

// Bit for bit; any NaN equals any NaN (its sign is the processor's choice).
inline void ExpectSameFloats(std::span<const float> seen, std::span<const float> expected) {
  ASSERT_EQ(seen.size(), expected.size());
  for (size_t i = 0; i < seen.size(); ++i) {
    if (std::isnan(seen[i]) && std::isnan(expected[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(seen[i]), std::bit_cast<uint32_t>(expected[i]))
        << "element " << i << ": " << seen[i] << " against " << expected[i];
  }
}

}  // namespace prefixd::quant
