// Converts codes of a byte each and packed rows to tiled units and back, for one SIMD target:
// included once per target. quant/tiled.h is the definition.
#if defined(PREFIXD_KERNELS_CONVERT_UNIT_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_CONVERT_UNIT_TILES_INL_H_
#undef PREFIXD_KERNELS_CONVERT_UNIT_TILES_INL_H_
#else
#define PREFIXD_KERNELS_CONVERT_UNIT_TILES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

#include "kernels/convert/ggml_rows-inl.h"
#include "kernels/convert/tile_rows-inl.h"
#include "kernels/convert/unit_rows-inl.h"
#include "kernels/convert/unit_step.h"
#include "quant/tiled.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// A `Beside` is called between pieces of the work, of about 1 KiB each. This one does nothing.
struct NothingBeside {
  HWY_INLINE void operator()() const {}
};

// Rows of the step's tokens.
template <typename Byte>
struct CodeRows {
  Byte* first;
  size_t stride;
};

// K is tile[word of the token][slot of the step]; `pitch` is the bytes from a word to the next.
// Store and load four tokens a block from `*t` on, as long as there are enough, and advance `*t`.
template <class D, class Row>
HWY_INLINE void StoreKeyTokens(D d, const std::byte* rows, size_t stride, size_t count,
                               std::byte* tile, size_t pitch, size_t* t) {
  constexpr size_t kTokens = 4 * kBlocksOf<D>;
  for (; *t + kTokens <= count; *t += kTokens) {
    const std::byte* from = rows + *t * stride;
    const auto row = [&](size_t i) HWY_ATTR { return Row::Key(d, from + i * stride, 4 * stride); };
    const Quad<D> words = TransposeWords(d, Quad<D>{row(0), row(1), row(2), row(3)});
    std::byte* to = tile + 4 * *t;
    StoreBytes(d, words.a, to + Row::kWords[0] * pitch);
    StoreBytes(d, words.b, to + Row::kWords[1] * pitch);
    StoreBytes(d, words.c, to + Row::kWords[2] * pitch);
    StoreBytes(d, words.d, to + Row::kWords[3] * pitch);
  }
}
template <class D, class Row>
HWY_INLINE void LoadKeyTokens(D d, const std::byte* tile, size_t pitch, size_t count,
                              std::byte* rows, size_t stride, size_t* t) {
  constexpr size_t kTokens = 4 * kBlocksOf<D>;
  for (; *t + kTokens <= count; *t += kTokens) {
    const Quad<D> words = LoadKeyQuad<Row>(d, tile + 4 * *t, pitch);
    std::byte* to = rows + *t * stride;
    Row::PutKey(d, words.a, to, 4 * stride);
    Row::PutKey(d, words.b, to + stride, 4 * stride);
    Row::PutKey(d, words.c, to + 2 * stride, 4 * stride);
    Row::PutKey(d, words.d, to + 3 * stride, 4 * stride);
  }
}

template <class Row, class Beside>
HWY_INLINE void StoreKeys(const UnitStep& step, const Row& row, CodeRows<const std::byte> codes,
                          std::byte* tile, size_t pitch, const Beside& beside) {
  const size_t count = step.count, stride = codes.stride;
  for (size_t c = 0; c < step.shape.dim; c += Row::kChannels, tile += 4 * pitch) {
    beside();
    const std::byte* from = codes.first + row.At(c);
    size_t t = 0;
    StoreKeyTokens<DBlocks, Row>(DBlocks(), from, stride, count, tile, pitch, &t);
    StoreKeyTokens<D8, Row>(D8(), from, stride, count, tile, pitch, &t);
    for (; t < count; ++t) {
      alignas(16) std::byte words[16];
      Store16(Row::Key(D8(), from + t * stride, 0), words);
      for (size_t w = 0; w < 4; ++w) {
        std::memcpy(tile + Row::kWords[w] * pitch + 4 * t, words + 4 * w, 4);
      }
    }
  }
}
template <class Row, class Beside>
HWY_INLINE void LoadKeys(const UnitStep& step, const Row& row, const std::byte* tile, size_t pitch,
                         CodeRows<std::byte> codes, const Beside& beside) {
  const size_t count = step.count, stride = codes.stride;
  for (size_t c = 0; c < step.shape.dim; c += Row::kChannels, tile += 4 * pitch) {
    beside();
    std::byte* to = codes.first + row.At(c);
    size_t t = 0;
    LoadKeyTokens<DBlocks, Row>(DBlocks(), tile, pitch, count, to, stride, &t);
    LoadKeyTokens<D8, Row>(D8(), tile, pitch, count, to, stride, &t);
    for (; t < count; ++t) {
      alignas(16) std::byte words[16];
      for (size_t w = 0; w < 4; ++w) {
        std::memcpy(words + 4 * w, tile + Row::kWords[w] * pitch + 4 * t, 4);
      }
      Row::PutKey(D8(), Load16(words), to + t * stride, 0);
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

  // Store and load the rows of four tokens a block, from slot 4 * quad of `words` on.
  template <class D, class Beside>
  HWY_INLINE void StoreQuads(D d, const std::byte* rows, size_t stride, size_t quad,
                             std::byte* words, const Beside& beside) const {
    ForEachRun(quad, [&](size_t at, size_t offset) HWY_ATTR {
      beside();
      const std::byte* from = rows + at;
      const auto row = [&](size_t i)
                           HWY_ATTR { return Row::Value(d, from + i * stride, 4 * stride); };
      StoreRuns(d, ZipTokens(d, Quad<D>{row(0), row(1), row(2), row(3)}), words + offset,
                quad_bytes_);
    });
  }
  template <class D, class Beside>
  HWY_INLINE void LoadQuads(D d, const std::byte* words, size_t quad, std::byte* rows,
                            size_t stride, const Beside& beside) const {
    ForEachRun(quad, [&](size_t at, size_t offset) HWY_ATTR {
      beside();
      const Quad<D> unzipped = UnzipTokens(d, LoadRuns(d, words + offset, quad_bytes_));
      std::byte* to = rows + at;
      Row::PutValue(d, unzipped.a, to, 4 * stride);
      Row::PutValue(d, unzipped.b, to + stride, 4 * stride);
      Row::PutValue(d, unzipped.c, to + 2 * stride, 4 * stride);
      Row::PutValue(d, unzipped.d, to + 3 * stride, 4 * stride);
    });
  }

  // Store and load one token of four: a byte of every word.
  HWY_INLINE void StoreToken(const std::byte* row, size_t slot, std::byte* words) const {
    ForEachRun(slot / 4, [&](size_t at, size_t offset) HWY_ATTR {
      alignas(16) std::byte bytes[16];
      Store16(Row::Value(D8(), row + at, 0), bytes);
      std::byte* to = words + offset + slot % 4;
      for (size_t i = 0; i < 16; ++i) to[4 * i] = bytes[i];
    });
  }
  HWY_INLINE void LoadToken(const std::byte* words, size_t slot, std::byte* row) const {
    ForEachRun(slot / 4, [&](size_t at, size_t offset) HWY_ATTR {
      alignas(16) std::byte bytes[16];
      const std::byte* from = words + offset + slot % 4;
      for (size_t i = 0; i < 16; ++i) bytes[i] = from[4 * i];
      Row::PutValue(D8(), Load16(bytes), row + at, 0);
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

// Returns how many tokens go together from `slot` on: four for each block of the target's vectors,
// four, or one.
HWY_INLINE size_t TokensTogether(size_t slot, size_t end) {
  if (slot % 4 != 0 || end - slot < 4) return 1;
  return end - slot < 4 * kBlocksOf<DBlocks> ? 4 : 4 * kBlocksOf<DBlocks>;
}

template <class Row, class Beside>
HWY_INLINE void StoreValues(const UnitStep& step, const Row& row, CodeRows<const std::byte> codes,
                            std::byte* words, const Beside& beside) {
  const ValueTile<Row> tile(step, row);
  const size_t end = size_t{step.first} + step.count;
  for (size_t slot = step.first; slot < end;) {
    const std::byte* from = codes.first + (slot - step.first) * codes.stride;
    const size_t tokens = TokensTogether(slot, end);
    if (tokens == 1) {
      tile.StoreToken(from, slot, words);
    } else if (tokens == 4) {
      tile.StoreQuads(D8(), from, codes.stride, slot / 4, words, beside);
    } else {
      tile.StoreQuads(DBlocks(), from, codes.stride, slot / 4, words, beside);
    }
    slot += tokens;
  }
}
template <class Row, class Beside>
HWY_INLINE void LoadValues(const UnitStep& step, const Row& row, const std::byte* words,
                           CodeRows<std::byte> codes, const Beside& beside) {
  const ValueTile<Row> tile(step, row);
  const size_t end = size_t{step.first} + step.count;
  for (size_t slot = step.first; slot < end;) {
    std::byte* to = codes.first + (slot - step.first) * codes.stride;
    const size_t tokens = TokensTogether(slot, end);
    if (tokens == 1) {
      tile.LoadToken(words, slot, to);
    } else if (tokens == 4) {
      tile.LoadQuads(D8(), words, slot / 4, to, codes.stride, beside);
    } else {
      tile.LoadQuads(DBlocks(), words, slot / 4, to, codes.stride, beside);
    }
    slot += tokens;
  }
}

template <class Row, class Beside>
HWY_INLINE void StoreTileCodes(const UnitStep& step, const Row& row,
                               CodeRows<const std::byte> codes, std::byte* unit,
                               const Beside& beside) {
  if (step.shape.side == quant::Side::kValue) return StoreValues(step, row, codes, unit, beside);
  const KeyPlace place(step);
  StoreKeys(step, row, codes, unit + place.offset, place.pitch, beside);
}
template <class Row, class Beside>
HWY_INLINE void LoadTileCodes(const UnitStep& step, const Row& row, const std::byte* unit,
                              CodeRows<std::byte> codes, const Beside& beside) {
  if (step.shape.side == quant::Side::kValue) return LoadValues(step, row, unit, codes, beside);
  const KeyPlace place(step);
  LoadKeys(step, row, unit + place.offset, place.pitch, codes, beside);
}

// Scales or biases of rows, copied to and from [group][slot]. `token`, `group`: strides in bytes.
template <typename Byte>
struct ParameterRows {
  Byte* first;
  size_t token, group;
};
template <typename Parameter>
HWY_INLINE void StoreParameters(const UnitStep& step, ParameterRows<const std::byte> from,
                                std::byte* to) {
  const size_t count = step.count;
  for (size_t g = 0; g < step.groups(); ++g) {
    std::byte* column = to + (g * step.layout.slots + step.first) * sizeof(Parameter);
    const std::byte* row = from.first + g * from.group;
    for (size_t t = 0; t < count; ++t) {
      std::memcpy(column + t * sizeof(Parameter), row + t * from.token, sizeof(Parameter));
    }
  }
}
template <typename Parameter>
HWY_INLINE void LoadParameters(const UnitStep& step, const std::byte* from,
                               ParameterRows<std::byte> to) {
  const size_t count = step.count;
  for (size_t g = 0; g < step.groups(); ++g) {
    const std::byte* column = from + (g * step.layout.slots + step.first) * sizeof(Parameter);
    std::byte* row = to.first + g * to.group;
    for (size_t t = 0; t < count; ++t) {
      std::memcpy(row + t * to.token, column + t * sizeof(Parameter), sizeof(Parameter));
    }
  }
}

// The most common case: two groups a token, of 16 bits, tokens side by side. `second` is the number
// of elements from the first group's column to the second's.
using DParameters = hn::ScalableTag<uint16_t>;
HWY_INLINE void StoreParameterPairs(const uint16_t* from, size_t count, size_t second,
                                    uint16_t* to) {
  const DParameters d;
  hn::Vec<DParameters> first_group, second_group;
  size_t t = 0;
  for (; t + hn::Lanes(d) <= count; t += hn::Lanes(d)) {
    hn::LoadInterleaved2(d, from + 2 * t, first_group, second_group);
    hn::StoreU(first_group, d, to + t);
    hn::StoreU(second_group, d, to + second + t);
  }
  for (; t < count; ++t) {
    to[t] = from[2 * t];
    to[second + t] = from[2 * t + 1];
  }
}
HWY_INLINE void LoadParameterPairs(const uint16_t* from, size_t count, size_t second,
                                   uint16_t* to) {
  const DParameters d;
  size_t t = 0;
  for (; t + hn::Lanes(d) <= count; t += hn::Lanes(d)) {
    hn::StoreInterleaved2(hn::LoadU(d, from + t), hn::LoadU(d, from + second + t), d, to + 2 * t);
  }
  for (; t < count; ++t) {
    to[2 * t] = from[t];
    to[2 * t + 1] = from[second + t];
  }
}
template <typename Byte>
HWY_INLINE bool ArePairs(const UnitStep& step, const ParameterRows<Byte>& rows) {
  return step.groups() == 2 && step.scale_bytes() == 2 && rows.group == 2 && rows.token == 4 &&
         reinterpret_cast<uintptr_t>(rows.first) % 2 == 0;
}

// Parameters in front of at least two bytes of codes: loads words and keeps half of each.
HWY_INLINE void StoreParametersOfBlocks(const UnitStep& step, ParameterRows<const std::byte> from,
                                        uint16_t* to) {
  const DI di;
  const size_t lanes = hn::Lanes(di), count = step.count;
  const VI offsets = hn::Mul(hn::Iota(di, 0), hn::Set(di, static_cast<int32_t>(from.token)));
  for (size_t g = 0; g < step.groups(); ++g) {
    uint16_t* column = to + g * step.layout.slots + step.first;
    const std::byte* row = from.first + g * from.group;
    size_t t = 0;
    for (; t + lanes <= count; t += lanes, row += lanes * from.token) {
      const VI words = hn::GatherOffset(di, reinterpret_cast<const int32_t*>(row), offsets);
      hn::StoreU(hn::TruncateTo(DU16(), hn::BitCast(DU(), words)), DU16(), column + t);
    }
    for (; t < count; ++t, row += from.token) std::memcpy(column + t, row, sizeof(*column));
  }
}

HWY_INLINE void LoadParametersOfBlocks(const UnitStep& step, const uint16_t* from,
                                       const ParameterRows<std::byte>& to) {
  const size_t count = step.count, groups = step.groups(), slots = step.layout.slots;
  const size_t token = to.token, group = to.group;
  std::byte* row = to.first;
  from += step.first;
  for (size_t t = 0; t < count; ++t, row += token, ++from) {
#pragma GCC unroll 4
    for (size_t g = 0; g < groups; ++g)
      std::memcpy(row + g * group, from + g * slots, sizeof(*from));
  }
}

// Stores scales and, if the format has them, biases. Takes them by reference: a copy on the stack
// would be read in other pieces than it was written in, which waits for every store before.
HWY_INLINE void StoreAllParameters(const UnitStep& step,
                                   const ParameterRows<const std::byte>& scales,
                                   const ParameterRows<const std::byte>& biases, std::byte* unit) {
  const auto store = [&](const ParameterRows<const std::byte>& from, uint64_t offset) HWY_ATTR {
    if (ArePairs(step, from)) {
      return StoreParameterPairs(reinterpret_cast<const uint16_t*>(from.first), step.count,
                                 step.layout.slots,
                                 reinterpret_cast<uint16_t*>(unit + offset) + step.first);
    }
    if (from.group > sizeof(int32_t)) {
      return StoreParametersOfBlocks(step, from, reinterpret_cast<uint16_t*>(unit + offset));
    }
    step.scale_bytes() == 4 ? StoreParameters<uint32_t>(step, from, unit + offset)
                            : StoreParameters<uint16_t>(step, from, unit + offset);
  };
  store(scales, step.layout.scales_offset);
  if (step.has_biases()) store(biases, step.layout.biases_offset);
}
HWY_INLINE void LoadAllParameters(const UnitStep& step, const std::byte* unit,
                                  const ParameterRows<std::byte>& scales,
                                  const ParameterRows<std::byte>& biases) {
  const auto load = [&](uint64_t offset, const ParameterRows<std::byte>& to) HWY_ATTR {
    if (ArePairs(step, to)) {
      return LoadParameterPairs(reinterpret_cast<const uint16_t*>(unit + offset) + step.first,
                                step.count, step.layout.slots,
                                reinterpret_cast<uint16_t*>(to.first));
    }
    if (to.group > sizeof(int32_t)) {
      return LoadParametersOfBlocks(step, reinterpret_cast<const uint16_t*>(unit + offset), to);
    }
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
  const NothingBeside beside;
  step.shape.format.bits == 4 ? StoreTileCodes(step, ByteRow<4>(), codes, unit, beside)
                              : StoreTileCodes(step, ByteRow<8>(), codes, unit, beside);
  const size_t token = step.groups() * step.scale_bytes();
  StoreAllParameters(step, {from.scales, token, step.scale_bytes()},
                     {from.biases, token, step.scale_bytes()}, unit);
}
inline HWY_ATTR void LoadTiles(const UnitStep& step, const std::byte* unit, const Parts& to) {
  const CodeRows<std::byte> codes{reinterpret_cast<std::byte*>(to.codes), step.shape.dim};
  const NothingBeside beside;
  step.shape.format.bits == 4 ? LoadTileCodes(step, ByteRow<4>(), unit, codes, beside)
                              : LoadTileCodes(step, ByteRow<8>(), unit, codes, beside);
  const size_t token = step.groups() * step.scale_bytes();
  LoadAllParameters(step, unit, {to.scales, token, step.scale_bytes()},
                    {to.biases, token, step.scale_bytes()});
}

// --- packed rows

// Calls visit(the kind of row) for formats that have a tiled layout.
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

template <class Beside = NothingBeside>
HWY_ATTR void StoreTilesOfRows(const UnitStep& step, const ConstStepRows& from, std::byte* unit,
                               const Beside& beside = {}) {
  WithRow(step.shape.format, [&](const auto& row) HWY_ATTR {
    StoreTileCodes(step, row, {from.codes, from.codes_stride}, unit, beside);
  });
  StoreAllParameters(step, ParametersOf(step, from, false), ParametersOf(step, from, true), unit);
}
template <class Beside = NothingBeside>
HWY_ATTR void LoadRowsOfTiles(const UnitStep& step, const std::byte* unit, const StepRows& to,
                              const Beside& beside = {}) {
#if PREFIXD_KERNELS_HAVE_PAIRS
  if (HasBlockRows(step)) return LoadBlockRows(step, unit, to, beside);
#endif
  WithRow(step.shape.format, [&](const auto& row) HWY_ATTR {
    LoadTileCodes(step, row, unit, {to.codes, to.codes_stride}, beside);
  });
  LoadAllParameters(step, unit, ParametersOf(step, to, false), ParametersOf(step, to, true));
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
