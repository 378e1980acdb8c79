#include "quant/unit.h"

#include <cstring>
#include <utility>
#include <vector>

#include "quant/row_codecs.h"
#include "quant/tiled.h"
#include "quant/transposed.h"

namespace prefixd::quant {
namespace {

// The codes, scales and biases of one token, in any layout. Only for formats with a tiled layout.
struct TokenParts {
  explicit TokenParts(const UnitShape& shape)
      : codes(shape.dim), scales(BytesOfStoredRow(Tiled(shape.format), shape.dim).scales) {
    biases.resize(BytesOfStoredRow(Tiled(shape.format), shape.dim).biases);
  }
  std::vector<uint8_t> codes;  // one per byte
  std::vector<std::byte> scales, biases;
};

// The place of a channel's code in a row, which is MLX's bit stream or ggml's blocks.
struct CodePlace {
  size_t byte = 0;
  uint32_t shift = 0;
};

CodePlace CodeInRow(const TensorFormat& format, uint32_t channel) {
  const bool nibbles = format.bits == 4;
  if (format.codec == Codec::kMlxAffine) {
    return nibbles ? CodePlace{channel / 2, channel % 2 * 4} : CodePlace{channel, 0};
  }
  const size_t parameters = format.codec == Codec::kQ4_1 ? 4 : 2;
  const size_t block = channel / kGgmlBlock * size_t{GgmlBlockBytes(format.codec)} + parameters;
  const uint32_t at = channel % kGgmlBlock;
  if (!nibbles) return {block + at, 0};
  return {block + at % (kGgmlBlock / 2), at < kGgmlBlock / 2 ? 0u : 4u};
}

uint8_t GetCode(const TensorFormat& format, const std::byte* from, uint32_t shift) {
  const uint32_t byte = std::to_integer<uint32_t>(*from);
  return static_cast<uint8_t>(format.bits == 4 ? byte >> shift & 15u : byte);
}

void PutCode(const TensorFormat& format, uint8_t code, std::byte* to, uint32_t shift) {
  if (format.bits == 4) {
    const std::byte other = *to & static_cast<std::byte>(0xf0u >> shift);
    *to = other | static_cast<std::byte>(code << shift);
  } else {
    *to = static_cast<std::byte>(code);
  }
}

// Calls visit(bytes of a scale or bias in `token`, their offset in a row's codes) for ggml's
// blocks.
template <typename Token, typename Visit>
void ForEachBlockParameter(const TensorFormat& format, Token& token, Visit visit) {
  const size_t bytes = DtypeBytes(format.dtype);
  const size_t block_bytes = GgmlBlockBytes(format.codec);
  for (size_t at = 0, block = 0; at < token.scales.size(); at += bytes, block += block_bytes) {
    visit(token.scales.data() + at, block);
    if (!token.biases.empty()) visit(token.biases.data() + at, block + bytes);
  }
}

void ReadRow(const TensorFormat& format, const ConstRowPlace& row, TokenParts& token) {
  for (uint32_t c = 0; c < token.codes.size(); ++c) {
    const CodePlace place = CodeInRow(format, c);
    token.codes[c] = GetCode(format, row.codes + place.byte, place.shift);
  }
  if (format.codec == Codec::kMlxAffine) {
    std::memcpy(token.scales.data(), row.scales, token.scales.size());
    std::memcpy(token.biases.data(), row.biases, token.biases.size());
    return;
  }
  ForEachBlockParameter(format, token, [&](std::byte* parameter, size_t offset) {
    std::memcpy(parameter, row.codes + offset, DtypeBytes(format.dtype));
  });
}

void WriteRow(const TensorFormat& format, const TokenParts& token, const RowPlace& row) {
  for (uint32_t c = 0; c < token.codes.size(); ++c) {
    const CodePlace place = CodeInRow(format, c);
    PutCode(format, token.codes[c], row.codes + place.byte, place.shift);
  }
  if (format.codec == Codec::kMlxAffine) {
    std::memcpy(row.scales, token.scales.data(), token.scales.size());
    std::memcpy(row.biases, token.biases.data(), token.biases.size());
    return;
  }
  ForEachBlockParameter(format, token, [&](const std::byte* parameter, size_t offset) {
    std::memcpy(row.codes + offset, parameter, DtypeBytes(format.dtype));
  });
}

void ReadTiled(const UnitShape& shape, const std::byte* unit, uint32_t slot, TokenParts& token) {
  const TiledPlaces places(shape);
  for (uint32_t c = 0; c < shape.dim; ++c) {
    token.codes[c] = GetCode(shape.format, unit + places.ByteOf(slot, c), places.ShiftOf(c));
  }
  const size_t bytes = DtypeBytes(shape.format.dtype);
  for (uint32_t g = 0; g < shape.dim / shape.format.group_size; ++g) {
    std::memcpy(token.scales.data() + g * bytes, unit + places.ScaleOf(slot, g), bytes);
    if (token.biases.empty()) continue;
    std::memcpy(token.biases.data() + g * bytes, unit + places.BiasOf(slot, g), bytes);
  }
}

void WriteTiled(const UnitShape& shape, const TokenParts& token, uint32_t slot, std::byte* unit) {
  const TiledPlaces places(shape);
  for (uint32_t c = 0; c < shape.dim; ++c) {
    PutCode(shape.format, token.codes[c], unit + places.ByteOf(slot, c), places.ShiftOf(c));
  }
  const size_t bytes = DtypeBytes(shape.format.dtype);
  for (uint32_t g = 0; g < shape.dim / shape.format.group_size; ++g) {
    std::memcpy(unit + places.ScaleOf(slot, g), token.scales.data() + g * bytes, bytes);
    if (token.biases.empty()) continue;
    std::memcpy(unit + places.BiasOf(slot, g), token.biases.data() + g * bytes, bytes);
  }
}

bool IsTiled(const UnitShape& shape) { return shape.format.layout == Layout::kTiled; }
bool IsTransposed(const UnitShape& shape) { return shape.format.layout == Layout::kTransposed; }
bool IsInRows(const UnitShape& shape) { return shape.format.layout == Layout::kRows; }

// A packed row with memory of its own.
class OwnRow {
 public:
  explicit OwnRow(const UnitShape& shape)
      : bytes_(BytesOfStoredRow(InRows(shape.format), shape.dim)), memory_(bytes_.total()) {}
  RowPlace place() {
    return {.codes = memory_.data(),
            .scales = memory_.data() + bytes_.codes,
            .biases = memory_.data() + bytes_.codes + bytes_.scales};
  }
  ConstRowPlace place() const {
    return {.codes = memory_.data(),
            .scales = memory_.data() + bytes_.codes,
            .biases = memory_.data() + bytes_.codes + bytes_.scales};
  }

 private:
  const RowBytes bytes_;
  std::vector<std::byte> memory_;
};

template <typename Place>
void CopyRows(const ConstRowPlace& from, const Place& to, const RowBytes& row, uint32_t count) {
  if (row.codes != 0) std::memcpy(to.codes, from.codes, uint64_t{row.codes} * count);
  if (row.scales != 0) std::memcpy(to.scales, from.scales, uint64_t{row.scales} * count);
  if (row.biases != 0) std::memcpy(to.biases, from.biases, uint64_t{row.biases} * count);
}

}  // namespace

UnitLayout LayoutOf(const UnitShape& unit) {
  return LayoutOfUnit(unit.format, unit.dim, unit.page_tokens);
}

void QuantizeToken(const UnitShape& shape, std::span<const float> row, uint32_t token,
                   std::byte* unit) {
  if (IsInRows(shape)) {
    return QuantizeRow(shape.format, row,
                       RowOf(unit, LayoutOf(shape), shape.format, shape.dim, token));
  }
  OwnRow packed(shape);
  QuantizeRow(shape.format, row, packed.place());
  StoreRow(shape, std::as_const(packed).place(), token, unit);
}

void DequantizeToken(const UnitShape& shape, const std::byte* unit, uint32_t token,
                     std::span<float> row) {
  if (IsInRows(shape)) {
    return DequantizeRow(shape.format, RowOf(unit, LayoutOf(shape), shape.format, shape.dim, token),
                         row);
  }
  OwnRow packed(shape);
  LoadRow(shape, unit, token, packed.place());
  DequantizeRow(shape.format, std::as_const(packed).place(), row);
}

void StoreRow(const UnitShape& shape, const ConstRowPlace& row, uint32_t token, std::byte* unit) {
  if (IsTransposed(shape)) return StoreTransposedRow(shape, row.codes, token, unit);
  if (!IsTiled(shape)) {
    return CopyRows(row, RowOf(unit, LayoutOf(shape), shape.format, shape.dim, token),
                    BytesOfStoredRow(shape.format, shape.dim), 1);
  }
  TokenParts parts(shape);
  ReadRow(shape.format, row, parts);
  WriteTiled(shape, parts, token, unit);
}

void LoadRow(const UnitShape& shape, const std::byte* unit, uint32_t token, const RowPlace& row) {
  if (IsTransposed(shape)) return LoadTransposedRow(shape, unit, token, row.codes);
  if (!IsTiled(shape)) {
    return CopyRows(RowOf(unit, LayoutOf(shape), shape.format, shape.dim, token), row,
                    BytesOfStoredRow(shape.format, shape.dim), 1);
  }
  TokenParts parts(shape);
  ReadTiled(shape, unit, token, parts);
  WriteRow(shape.format, parts, row);
}

void CopyTokens(const ConstUnitTokens& from, const UnitTokens& to, uint32_t count) {
  const UnitShape& shape = from.shape;
  const auto row_of = [](const auto& side, uint32_t token) {
    return RowOf(side.unit, LayoutOf(side.shape), side.shape.format, side.shape.dim, token);
  };
  if (IsTransposed(from.shape) || IsTransposed(to.shape)) {
    return CopyTransposedTokens(from, to, count);
  }
  if (!IsTiled(from.shape) && !IsTiled(to.shape)) {
    return CopyRows(row_of(from, from.begin), row_of(to, to.begin),
                    BytesOfStoredRow(shape.format, shape.dim), count);
  }
  if (IsTiled(from.shape) && IsTiled(to.shape)) return CopyTiledTokens(from, to, count);
  TokenParts parts(shape);
  for (uint32_t i = 0; i < count; ++i) {
    if (IsTiled(from.shape)) {
      ReadTiled(from.shape, from.unit, from.begin + i, parts);
      WriteRow(to.shape.format, parts, row_of(to, to.begin + i));
    } else {
      ReadRow(from.shape.format, row_of(from, from.begin + i), parts);
      WriteTiled(to.shape, parts, to.begin + i, to.unit);
    }
  }
}

}  // namespace prefixd::quant
