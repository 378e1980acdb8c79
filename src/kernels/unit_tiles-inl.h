// Tiled units from codes of a byte each and from packed rows, and back, for one SIMD target:
// included once per target. quant/tiled.h is the definition.
#if defined(PREFIXD_KERNELS_UNIT_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_UNIT_TILES_INL_H_
#undef PREFIXD_KERNELS_UNIT_TILES_INL_H_
#else
#define PREFIXD_KERNELS_UNIT_TILES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

#include "kernels/unit_rows-inl.h"
#include "kernels/unit_step.h"
#include "quant/tiled.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

using V32 = hn::Vec<D32>;

// Four vectors as the rows of a matrix of words, and the same for bytes of words below.
struct Quad {
  V8 a, b, c, d;
};

HWY_INLINE Quad TransposeWords(const Quad& rows) {
  const D32 d32;
  const D64 d64;
  const V32 a = hn::BitCast(d32, rows.a), b = hn::BitCast(d32, rows.b);
  const V32 c = hn::BitCast(d32, rows.c), d = hn::BitCast(d32, rows.d);
  const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(a, b));
  const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(d32, a, b));
  const auto cd_low = hn::BitCast(d64, hn::InterleaveLower(c, d));
  const auto cd_high = hn::BitCast(d64, hn::InterleaveUpper(d32, c, d));
  const D8 d8;
  return {hn::BitCast(d8, hn::InterleaveLower(ab_low, cd_low)),
          hn::BitCast(d8, hn::InterleaveUpper(d64, ab_low, cd_low)),
          hn::BitCast(d8, hn::InterleaveLower(ab_high, cd_high)),
          hn::BitCast(d8, hn::InterleaveUpper(d64, ab_high, cd_high))};
}

// Rows of 16 bytes, one a token, to 16 words of four tokens.
HWY_INLINE Quad ZipTokens(const Quad& rows) {
  const D8 d8;
  const D16 d16;
  const auto ab_low = hn::BitCast(d16, hn::InterleaveLower(rows.a, rows.b));
  const auto ab_high = hn::BitCast(d16, hn::InterleaveUpper(d8, rows.a, rows.b));
  const auto cd_low = hn::BitCast(d16, hn::InterleaveLower(rows.c, rows.d));
  const auto cd_high = hn::BitCast(d16, hn::InterleaveUpper(d8, rows.c, rows.d));
  return {hn::BitCast(d8, hn::InterleaveLower(ab_low, cd_low)),
          hn::BitCast(d8, hn::InterleaveUpper(d16, ab_low, cd_low)),
          hn::BitCast(d8, hn::InterleaveLower(ab_high, cd_high)),
          hn::BitCast(d8, hn::InterleaveUpper(d16, ab_high, cd_high))};
}

// The other way: bytes of a token side by side in every vector, then words of a token in one.
HWY_INLINE Quad UnzipTokens(const Quad& words) {
  alignas(16) static constexpr uint8_t kOrder[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                     2, 6, 10, 14, 3, 7, 11, 15};
  const V8 order = hn::Load(D8(), kOrder);
  return TransposeWords({hn::TableLookupBytes(words.a, order), hn::TableLookupBytes(words.b, order),
                         hn::TableLookupBytes(words.c, order),
                         hn::TableLookupBytes(words.d, order)});
}

// What stands in a row of one token, as 16 bytes of tiled K (four words) and of tiled V, and back.
// `row` + At(c) is where channel c begins. 16 bytes hold kChannels channels.

// Codes of a byte each; MLX's rows of 8 bits are no different.
template <int kBits>
struct ByteRow;
template <>
struct ByteRow<8> {
  static constexpr size_t kChannels = 16;
  HWY_INLINE size_t At(size_t channel) const { return channel; }
  static HWY_INLINE V8 Key(const std::byte* from) { return Load16(from); }
  static HWY_INLINE V8 Value(const std::byte* from) { return Load16(from); }
  static HWY_INLINE void PutKey(V8 words, std::byte* to) { Store16(words, to); }
  static HWY_INLINE void PutValue(V8 bytes, std::byte* to) { Store16(bytes, to); }
};
template <>
struct ByteRow<4> {
  static constexpr size_t kChannels = 32;
  HWY_INLINE size_t At(size_t channel) const { return channel; }
  static HWY_INLINE V8 Key(const std::byte* from) { return KeyOf(Load16(from), Load16(from + 16)); }
  static HWY_INLINE V8 Value(const std::byte* from) {
    return JoinNibbles(Load16(from), Load16(from + 16));
  }
  static HWY_INLINE void PutKey(V8 words, std::byte* to) {
    Store16(FirstOf(words), to);
    Store16(SecondOf(words), to + 16);
  }
  static HWY_INLINE void PutValue(V8 bytes, std::byte* to) {
    Store16(LowNibbles(bytes), to);
    Store16(HighNibbles(bytes), to + 16);
  }

  // Words of K from the codes of 16 channels and of the 16 after them, and back.
  static HWY_INLINE V8 KeyOf(V8 first, V8 second) {
    return hn::BitCast(D8(), hn::ConcatEven(D32(), JoinPairs(second), JoinPairs(first)));
  }
  static HWY_INLINE V8 FirstOf(V8 words) {
    return hn::BitCast(D8(), hn::InterleaveLower(Low(words), High(words)));
  }
  static HWY_INLINE V8 SecondOf(V8 words) {
    return hn::BitCast(D8(), hn::InterleaveUpper(D32(), Low(words), High(words)));
  }

 private:
  // Of eight bytes below 16 a word in the lower half: the last four in the high nibbles.
  static HWY_INLINE V32 JoinPairs(V8 bytes) {
    const auto wide = hn::BitCast(D64(), bytes);
    return hn::BitCast(D32(), hn::Or(wide, hn::ShiftRight<28>(wide)));
  }
  static HWY_INLINE V32 Low(V8 words) { return hn::BitCast(D32(), LowNibbles(words)); }
  static HWY_INLINE V32 High(V8 words) { return hn::BitCast(D32(), HighNibbles(words)); }
};

// MLX's rows of 4 bits.
struct NibbleRow {
  static constexpr size_t kChannels = 32;
  HWY_INLINE size_t At(size_t channel) const { return channel / 2; }
  // The nibbles 0 ... 7 of a word become 0, 4, 1, 5, 2, 6, 3, 7: bytes 1 and 2 change places, then
  // nibbles 1 and 2 of each half.
  static HWY_INLINE V8 Key(const std::byte* from) {
    return Swap<4>(Swap<8>(Load16(from), 0x0000ff00), 0x00f000f0);
  }
  static HWY_INLINE void PutKey(V8 words, std::byte* to) {
    Store16(Swap<8>(Swap<4>(words, 0x00f000f0), 0x0000ff00), to);
  }
  static HWY_INLINE V8 Value(const std::byte* from) {
    const V8 both = Load16(from);
    const V8 even = LowNibbles(both), odd = HighNibbles(both);
    return JoinNibbles(hn::InterleaveLower(even, odd), hn::InterleaveUpper(D8(), even, odd));
  }
  static HWY_INLINE void PutValue(V8 bytes, std::byte* to) {
    const V8 first = LowNibbles(bytes), second = HighNibbles(bytes);
    Store16(JoinNibbles(hn::ConcatEven(D8(), second, first), hn::ConcatOdd(D8(), second, first)),
            to);
  }

 private:
  // The bits of `mask` and those kShift above them change places in every word.
  template <int kShift>
  static HWY_INLINE V8 Swap(V8 bytes, uint32_t mask) {
    const V32 words = hn::BitCast(D32(), bytes);
    const V32 differ = hn::And(hn::Xor(words, hn::ShiftRight<kShift>(words)), hn::Set(D32(), mask));
    return hn::BitCast(D8(), hn::Xor(words, hn::Xor(differ, hn::ShiftLeft<kShift>(differ))));
  }
};

// ggml's blocks: q8_0, and q4_0 and q4_1, whose bytes are those of tiled V.
struct ByteBlocks : ByteRow<8> {
  HWY_INLINE size_t At(size_t channel) const { return channel / 32 * 34 + 2 + channel % 32; }
};
struct NibbleBlocks {
  static constexpr size_t kChannels = 32;
  size_t head;  // bytes of scales before the codes
  HWY_INLINE size_t At(size_t channel) const { return channel / 32 * (head + 16) + head; }
  static HWY_INLINE V8 Key(const std::byte* from) {
    const V8 both = Load16(from);
    return ByteRow<4>::KeyOf(LowNibbles(both), HighNibbles(both));
  }
  static HWY_INLINE void PutKey(V8 words, std::byte* to) {
    Store16(JoinNibbles(ByteRow<4>::FirstOf(words), ByteRow<4>::SecondOf(words)), to);
  }
  static HWY_INLINE V8 Value(const std::byte* from) { return Load16(from); }
  static HWY_INLINE void PutValue(V8 bytes, std::byte* to) { Store16(bytes, to); }
};

// Rows of the step's tokens.
template <typename Byte>
struct CodeRows {
  Byte* first;
  size_t stride;
};

// K: tile[word of the token][slot of the step]; `pitch`: bytes from a word to the next.
template <class Row>
HWY_INLINE void StoreKeys(const UnitStep& step, const Row& row, CodeRows<const std::byte> codes,
                          std::byte* tile, size_t pitch) {
  const size_t count = step.count, stride = codes.stride;
  for (size_t c = 0; c < step.shape.dim; c += Row::kChannels, tile += 4 * pitch) {
    const std::byte* from = codes.first + row.At(c);
    size_t t = 0;
    for (; t + 4 <= count; t += 4, from += 4 * stride) {
      const Quad words = TransposeWords({Row::Key(from), Row::Key(from + stride),
                                         Row::Key(from + 2 * stride), Row::Key(from + 3 * stride)});
      std::byte* to = tile + 4 * t;
      Store16(words.a, to);
      Store16(words.b, to + pitch);
      Store16(words.c, to + 2 * pitch);
      Store16(words.d, to + 3 * pitch);
    }
    for (; t < count; ++t, from += stride) {
      alignas(16) std::byte words[16];
      Store16(Row::Key(from), words);
      for (size_t w = 0; w < 4; ++w) std::memcpy(tile + w * pitch + 4 * t, words + 4 * w, 4);
    }
  }
}
template <class Row>
HWY_INLINE void LoadKeys(const UnitStep& step, const Row& row, const std::byte* tile, size_t pitch,
                         CodeRows<std::byte> codes) {
  const size_t count = step.count, stride = codes.stride;
  for (size_t c = 0; c < step.shape.dim; c += Row::kChannels, tile += 4 * pitch) {
    std::byte* to = codes.first + row.At(c);
    size_t t = 0;
    for (; t + 4 <= count; t += 4, to += 4 * stride) {
      const std::byte* from = tile + 4 * t;
      const Quad rows = TransposeWords(
          {Load16(from), Load16(from + pitch), Load16(from + 2 * pitch), Load16(from + 3 * pitch)});
      Row::PutKey(rows.a, to);
      Row::PutKey(rows.b, to + stride);
      Row::PutKey(rows.c, to + 2 * stride);
      Row::PutKey(rows.d, to + 3 * stride);
    }
    for (; t < count; ++t, to += stride) {
      alignas(16) std::byte words[16];
      for (size_t w = 0; w < 4; ++w) std::memcpy(words + 4 * w, tile + w * pitch + 4 * t, 4);
      Row::PutKey(Load16(words), to);
    }
  }
}

// The words of V: runs of 64 bytes, [group][slot / 4][run].
template <class Row>
class ValueTile {
 public:
  HWY_INLINE ValueTile(const UnitStep& step, const Row& row)
      : row_(row),
        dim_(step.shape.dim),
        quad_bytes_(step.shape.format.group_size / Row::kChannels * 64),
        group_bytes_(step.layout.slots / 4 * quad_bytes_) {}

  // The rows of four tokens from slot 4 * quad of `words` on.
  HWY_INLINE void StoreQuad(const std::byte* rows, size_t stride, size_t quad,
                            std::byte* words) const {
    ForEachRun(quad, [&](size_t at, size_t offset) HWY_ATTR {
      const std::byte* from = rows + at;
      const Quad zipped = ZipTokens({Row::Value(from), Row::Value(from + stride),
                                     Row::Value(from + 2 * stride), Row::Value(from + 3 * stride)});
      std::byte* to = words + offset;
      Store16(zipped.a, to);
      Store16(zipped.b, to + 16);
      Store16(zipped.c, to + 32);
      Store16(zipped.d, to + 48);
    });
  }
  HWY_INLINE void LoadQuad(const std::byte* words, size_t quad, std::byte* rows,
                           size_t stride) const {
    ForEachRun(quad, [&](size_t at, size_t offset) HWY_ATTR {
      const std::byte* from = words + offset;
      const Quad unzipped =
          UnzipTokens({Load16(from), Load16(from + 16), Load16(from + 32), Load16(from + 48)});
      std::byte* to = rows + at;
      Row::PutValue(unzipped.a, to);
      Row::PutValue(unzipped.b, to + stride);
      Row::PutValue(unzipped.c, to + 2 * stride);
      Row::PutValue(unzipped.d, to + 3 * stride);
    });
  }

  // One token of four: a byte of every word.
  HWY_INLINE void StoreToken(const std::byte* row, size_t slot, std::byte* words) const {
    ForEachRun(slot / 4, [&](size_t at, size_t offset) HWY_ATTR {
      alignas(16) std::byte bytes[16];
      Store16(Row::Value(row + at), bytes);
      std::byte* to = words + offset + slot % 4;
      for (size_t i = 0; i < 16; ++i) to[4 * i] = bytes[i];
    });
  }
  HWY_INLINE void LoadToken(const std::byte* words, size_t slot, std::byte* row) const {
    ForEachRun(slot / 4, [&](size_t at, size_t offset) HWY_ATTR {
      alignas(16) std::byte bytes[16];
      const std::byte* from = words + offset + slot % 4;
      for (size_t i = 0; i < 16; ++i) bytes[i] = from[4 * i];
      Row::PutValue(Load16(bytes), row + at);
    });
  }

 private:
  // Calls visit(offset of the run's channels in a row, offset of its words).
  template <class Visit>
  HWY_INLINE void ForEachRun(size_t quad, const Visit& visit) const {
    size_t begin = quad * quad_bytes_;
    for (size_t c = 0; c < dim_; begin += group_bytes_) {
      for (size_t r = 0; r < quad_bytes_; r += 64, c += Row::kChannels) {
        visit(row_.At(c), begin + r);
      }
    }
  }

  const Row row_;
  const size_t dim_, quad_bytes_, group_bytes_;
};

template <class Row>
HWY_INLINE void StoreValues(const UnitStep& step, const Row& row, CodeRows<const std::byte> codes,
                            std::byte* words) {
  const ValueTile<Row> tile(step, row);
  const size_t end = size_t{step.first} + step.count;
  for (size_t slot = step.first; slot < end;) {
    const std::byte* from = codes.first + (slot - step.first) * codes.stride;
    if (slot % 4 == 0 && end - slot >= 4) {
      tile.StoreQuad(from, codes.stride, slot / 4, words);
      slot += 4;
    } else {
      tile.StoreToken(from, slot++, words);
    }
  }
}
template <class Row>
HWY_INLINE void LoadValues(const UnitStep& step, const Row& row, const std::byte* words,
                           CodeRows<std::byte> codes) {
  const ValueTile<Row> tile(step, row);
  const size_t end = size_t{step.first} + step.count;
  for (size_t slot = step.first; slot < end;) {
    std::byte* to = codes.first + (slot - step.first) * codes.stride;
    if (slot % 4 == 0 && end - slot >= 4) {
      tile.LoadQuad(words, slot / 4, to, codes.stride);
      slot += 4;
    } else {
      tile.LoadToken(words, slot++, to);
    }
  }
}

// Where the words of the step's first slot stand in tiled K, and from a word to the next.
struct KeyPlace {
  HWY_INLINE explicit KeyPlace(const UnitStep& step) {
    const size_t first = step.first / quant::kTileSlots * quant::kTileSlots;
    const size_t slots = HWY_MIN(size_t{quant::kTileSlots}, step.layout.slots - first);
    const size_t token_bytes = size_t{step.shape.dim} * step.shape.format.bits / 8;
    pitch = slots * quant::kWordBytes;
    offset = first * token_bytes + (step.first - first) * quant::kWordBytes;
  }
  size_t pitch, offset;
};

template <class Row>
HWY_INLINE void StoreTileCodes(const UnitStep& step, const Row& row,
                               CodeRows<const std::byte> codes, std::byte* unit) {
  if (step.shape.side == quant::Side::kValue) return StoreValues(step, row, codes, unit);
  const KeyPlace place(step);
  StoreKeys(step, row, codes, unit + place.offset, place.pitch);
}
template <class Row>
HWY_INLINE void LoadTileCodes(const UnitStep& step, const Row& row, const std::byte* unit,
                              CodeRows<std::byte> codes) {
  if (step.shape.side == quant::Side::kValue) return LoadValues(step, row, unit, codes);
  const KeyPlace place(step);
  LoadKeys(step, row, unit + place.offset, place.pitch, codes);
}

// Parameters that stand `token` and `group` bytes from one another, to and from [group][slot].
template <typename Byte>
struct ParameterRows {
  Byte* first;
  size_t token, group;
};
template <typename Parameter>
HWY_INLINE void StoreParameters(const UnitStep& step, ParameterRows<const std::byte> from,
                                std::byte* to) {
  for (size_t g = 0; g < step.groups(); ++g) {
    std::byte* column = to + (g * step.layout.slots + step.first) * sizeof(Parameter);
    const std::byte* row = from.first + g * from.group;
    for (size_t t = 0; t < step.count; ++t) {
      std::memcpy(column + t * sizeof(Parameter), row + t * from.token, sizeof(Parameter));
    }
  }
}
template <typename Parameter>
HWY_INLINE void LoadParameters(const UnitStep& step, const std::byte* from,
                               ParameterRows<std::byte> to) {
  for (size_t g = 0; g < step.groups(); ++g) {
    const std::byte* column = from + (g * step.layout.slots + step.first) * sizeof(Parameter);
    std::byte* row = to.first + g * to.group;
    for (size_t t = 0; t < step.count; ++t) {
      std::memcpy(row + t * to.token, column + t * sizeof(Parameter), sizeof(Parameter));
    }
  }
}

// Of scales and of biases, where the format has them.
HWY_INLINE void StoreAllParameters(const UnitStep& step, ParameterRows<const std::byte> scales,
                                   ParameterRows<const std::byte> biases, std::byte* unit) {
  const auto store = [&](ParameterRows<const std::byte> from, uint64_t offset) HWY_ATTR {
    step.scale_bytes() == 4 ? StoreParameters<uint32_t>(step, from, unit + offset)
                            : StoreParameters<uint16_t>(step, from, unit + offset);
  };
  store(scales, step.layout.scales_offset);
  if (step.has_biases()) store(biases, step.layout.biases_offset);
}
HWY_INLINE void LoadAllParameters(const UnitStep& step, const std::byte* unit,
                                  ParameterRows<std::byte> scales,
                                  ParameterRows<std::byte> biases) {
  const auto load = [&](uint64_t offset, ParameterRows<std::byte> to) HWY_ATTR {
    step.scale_bytes() == 4 ? LoadParameters<uint32_t>(step, unit + offset, to)
                            : LoadParameters<uint16_t>(step, unit + offset, to);
  };
  load(step.layout.scales_offset, scales);
  if (step.has_biases()) load(step.layout.biases_offset, biases);
}

// --- parts

inline HWY_ATTR void StoreTiles(const UnitStep& step, const ConstParts& from, std::byte* unit) {
  const CodeRows<const std::byte> codes{reinterpret_cast<const std::byte*>(from.codes),
                                        step.shape.dim};
  step.shape.format.bits == 4 ? StoreTileCodes(step, ByteRow<4>(), codes, unit)
                              : StoreTileCodes(step, ByteRow<8>(), codes, unit);
  const size_t token = step.groups() * step.scale_bytes();
  StoreAllParameters(step, {from.scales, token, step.scale_bytes()},
                     {from.biases, token, step.scale_bytes()}, unit);
}
inline HWY_ATTR void LoadTiles(const UnitStep& step, const std::byte* unit, const Parts& to) {
  const CodeRows<std::byte> codes{reinterpret_cast<std::byte*>(to.codes), step.shape.dim};
  step.shape.format.bits == 4 ? LoadTileCodes(step, ByteRow<4>(), unit, codes)
                              : LoadTileCodes(step, ByteRow<8>(), unit, codes);
  const size_t token = step.groups() * step.scale_bytes();
  LoadAllParameters(step, unit, {to.scales, token, step.scale_bytes()},
                    {to.biases, token, step.scale_bytes()});
}

// --- packed rows

// Calls visit(the kind of row) for formats that have tiled.
template <class Visit>
HWY_INLINE void WithRow(const quant::TensorFormat& format, const Visit& visit) {
  const bool nibbles = format.bits == 4;
  if (format.codec == quant::Codec::kMlxAffine) {
    return nibbles ? visit(NibbleRow()) : visit(ByteRow<8>());
  }
  if (!nibbles) return visit(ByteBlocks());
  visit(NibbleBlocks{format.codec == quant::Codec::kQ4_1 ? size_t{4} : size_t{2}});
}
// ggml's rows keep their parameters in front of each block's codes.
template <typename Byte>
HWY_INLINE ParameterRows<Byte> ParametersOf(const UnitStep& step, const BasicStepRows<Byte>& rows,
                                            bool biases) {
  if (step.shape.format.codec == quant::Codec::kMlxAffine) {
    return {biases ? rows.biases : rows.scales, rows.scales_stride, step.scale_bytes()};
  }
  const size_t head = step.has_biases() ? 4 : 2;
  return {rows.codes + (biases ? 2 : 0), rows.codes_stride,
          head + size_t{4} * step.shape.format.bits};
}

inline HWY_ATTR void StoreTilesOfRows(const UnitStep& step, const ConstStepRows& from,
                                      std::byte* unit) {
  WithRow(step.shape.format, [&](const auto& row) HWY_ATTR {
    StoreTileCodes(step, row, {from.codes, from.codes_stride}, unit);
  });
  StoreAllParameters(step, ParametersOf(step, from, false), ParametersOf(step, from, true), unit);
}
inline HWY_ATTR void LoadRowsOfTiles(const UnitStep& step, const std::byte* unit,
                                     const StepRows& to) {
  WithRow(step.shape.format, [&](const auto& row) HWY_ATTR {
    LoadTileCodes(step, row, unit, {to.codes, to.codes_stride});
  });
  LoadAllParameters(step, unit, ParametersOf(step, to, false), ParametersOf(step, to, true));
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
