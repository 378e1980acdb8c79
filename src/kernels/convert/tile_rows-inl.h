// Blocks of 16 bytes and rows of codes, the parts that tiled units are made of, for one SIMD
// target: included once per target. quant/tiled.h is the definition.
#if defined(PREFIXD_KERNELS_CONVERT_TILE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_CONVERT_TILE_ROWS_INL_H_
#undef PREFIXD_KERNELS_CONVERT_TILE_ROWS_INL_H_
#else
#define PREFIXD_KERNELS_CONVERT_TILE_ROWS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/convert/unit_rows-inl.h"
#include "kernels/convert/unit_step.h"
#include "quant/tiled.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// A vector is blocks of 16 bytes that are worked on alike: one for each token, or each four tokens.
// It has as many blocks as the target allows; the rest at an end goes in vectors of one block.
using DBlocks = hn::CappedTag<uint8_t, 64>;

template <class D>
inline constexpr size_t kBlocksOf = hn::MaxLanes(D()) / 16;

// `stride`: bytes from a block to the next.
template <class D>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const std::byte* from, size_t stride) {
  if constexpr (kBlocksOf<D> == 1) {
    return hn::LoadU(d, reinterpret_cast<const uint8_t*>(from));
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, LoadBlocks(half, from + kBlocksOf<D> / 2 * stride, stride),
                       LoadBlocks(half, from, stride));
  }
}
template <class D>
HWY_INLINE void StoreBlocks(D d, hn::Vec<D> blocks, std::byte* to, size_t stride) {
  if constexpr (kBlocksOf<D> == 1) {
    hn::StoreU(blocks, d, reinterpret_cast<uint8_t*>(to));
  } else {
    const hn::Half<D> half;
    StoreBlocks(half, hn::LowerHalf(half, blocks), to, stride);
    StoreBlocks(half, hn::UpperHalf(half, blocks), to + kBlocksOf<D> / 2 * stride, stride);
  }
}
template <class D>
HWY_INLINE hn::Vec<D> LoadBytes(D d, const std::byte* from) {
  return hn::LoadU(d, reinterpret_cast<const uint8_t*>(from));
}
template <class D>
HWY_INLINE void StoreBytes(D d, hn::Vec<D> bytes, std::byte* to) {
  hn::StoreU(bytes, d, reinterpret_cast<uint8_t*>(to));
}
// Reorders the bytes of every block alike.
template <class D>
HWY_INLINE hn::Vec<D> Reorder(D d, hn::Vec<D> blocks, const uint8_t* order) {
  return hn::TableLookupBytes(blocks, hn::LoadDup128(d, order));
}

// Four vectors. In TransposeWords they are the rows of a matrix of words in every block.
template <class D>
struct Quad {
  hn::Vec<D> a, b, c, d;
};

template <class D>
HWY_INLINE Quad<D> TransposeWords(D d8, const Quad<D>& rows) {
  const hn::Repartition<uint32_t, D> d32;
  const hn::Repartition<uint64_t, D> d64;
  const auto a = hn::BitCast(d32, rows.a), b = hn::BitCast(d32, rows.b);
  const auto c = hn::BitCast(d32, rows.c), d = hn::BitCast(d32, rows.d);
  const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(d32, a, b));
  const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(d32, a, b));
  const auto cd_low = hn::BitCast(d64, hn::InterleaveLower(d32, c, d));
  const auto cd_high = hn::BitCast(d64, hn::InterleaveUpper(d32, c, d));
  return {hn::BitCast(d8, hn::InterleaveLower(d64, ab_low, cd_low)),
          hn::BitCast(d8, hn::InterleaveUpper(d64, ab_low, cd_low)),
          hn::BitCast(d8, hn::InterleaveLower(d64, ab_high, cd_high)),
          hn::BitCast(d8, hn::InterleaveUpper(d64, ab_high, cd_high))};
}

// Turns rows of 16 bytes, one for each token, into 16 words of four tokens.
template <class D>
HWY_INLINE Quad<D> ZipTokens(D d8, const Quad<D>& rows) {
  const hn::Repartition<uint16_t, D> d16;
  const auto ab_low = hn::BitCast(d16, hn::InterleaveLower(d8, rows.a, rows.b));
  const auto ab_high = hn::BitCast(d16, hn::InterleaveUpper(d8, rows.a, rows.b));
  const auto cd_low = hn::BitCast(d16, hn::InterleaveLower(d8, rows.c, rows.d));
  const auto cd_high = hn::BitCast(d16, hn::InterleaveUpper(d8, rows.c, rows.d));
  return {hn::BitCast(d8, hn::InterleaveLower(d16, ab_low, cd_low)),
          hn::BitCast(d8, hn::InterleaveUpper(d16, ab_low, cd_low)),
          hn::BitCast(d8, hn::InterleaveLower(d16, ab_high, cd_high)),
          hn::BitCast(d8, hn::InterleaveUpper(d16, ab_high, cd_high))};
}

// The reverse: brings a token's bytes side by side in every vector, then its words into one.
template <class D>
HWY_INLINE Quad<D> UnzipTokens(D d, const Quad<D>& words) {
  alignas(16) static constexpr uint8_t kOrder[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                     2, 6, 10, 14, 3, 7, 11, 15};
  return TransposeWords(d, {Reorder(d, words.a, kOrder), Reorder(d, words.b, kOrder),
                            Reorder(d, words.c, kOrder), Reorder(d, words.d, kOrder)});
}

// A run of 64 bytes is one block of each of four vectors. Runs stand `pitch` bytes apart.
template <class D>
HWY_INLINE Quad<D> TransposeBlocks(D d, const Quad<D>& v) {
  static_assert(kBlocksOf<D> == 4);
  const auto ac_low = hn::ConcatLowerLower(d, v.c, v.a),
             ac_high = hn::ConcatUpperUpper(d, v.c, v.a);
  const auto bd_low = hn::ConcatLowerLower(d, v.d, v.b),
             bd_high = hn::ConcatUpperUpper(d, v.d, v.b);
  return {hn::OddEvenBlocks(hn::SwapAdjacentBlocks(bd_low), ac_low),
          hn::OddEvenBlocks(bd_low, hn::SwapAdjacentBlocks(ac_low)),
          hn::OddEvenBlocks(hn::SwapAdjacentBlocks(bd_high), ac_high),
          hn::OddEvenBlocks(bd_high, hn::SwapAdjacentBlocks(ac_high))};
}
template <class D>
HWY_INLINE void StoreRuns(D d, const Quad<D>& v, std::byte* to, size_t pitch) {
  if constexpr (kBlocksOf<D> == 4) {
    const Quad<D> runs = TransposeBlocks(d, v);
    StoreBytes(d, runs.a, to);
    StoreBytes(d, runs.b, to + pitch);
    StoreBytes(d, runs.c, to + 2 * pitch);
    StoreBytes(d, runs.d, to + 3 * pitch);
  } else {
    StoreBlocks(d, v.a, to, pitch);
    StoreBlocks(d, v.b, to + 16, pitch);
    StoreBlocks(d, v.c, to + 32, pitch);
    StoreBlocks(d, v.d, to + 48, pitch);
  }
}
template <class D>
HWY_INLINE Quad<D> LoadRuns(D d, const std::byte* from, size_t pitch) {
  if constexpr (kBlocksOf<D> == 4) {
    return TransposeBlocks(d, {LoadBytes(d, from), LoadBytes(d, from + pitch),
                               LoadBytes(d, from + 2 * pitch), LoadBytes(d, from + 3 * pitch)});
  } else {
    return {LoadBlocks(d, from, pitch), LoadBlocks(d, from + 16, pitch),
            LoadBlocks(d, from + 32, pitch), LoadBlocks(d, from + 48, pitch)};
  }
}

// Where the words of the step's first slot stand in tiled K; `pitch`: bytes from word to word.
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
// Loads the words of a Row's channels, four tokens a block, and turns them into 16 bytes of each
// token. `tile` is the first token's word, `pitch` the bytes from a word to the next.
template <class Row, class D>
HWY_INLINE Quad<D> LoadKeyQuad(D d, const std::byte* tile, size_t pitch) {
  const auto word = [&](size_t i) HWY_ATTR { return LoadBytes(d, tile + Row::kWords[i] * pitch); };
  return TransposeWords(d, Quad<D>{word(0), word(1), word(2), word(3)});
}

// Row classes turn a row of one token into 16 bytes of tiled K (four words: the i-th is word
// kWords[i] of the channels) or of tiled V, and back. Channel c begins at `row` + At(c). 16 bytes
// hold kChannels channels. Vectors have one block for each token; the tokens' rows are `stride`
// bytes apart. KeyBytes returns what PutKey stores.

// Rows with a byte for each code of kBits bits. MLX's 8-bit rows are the same.
template <int kBits>
struct ByteRow;
template <>
struct ByteRow<8> {
  static constexpr size_t kChannels = 16;
  static constexpr size_t kWords[4] = {0, 1, 2, 3};
  HWY_INLINE size_t At(size_t channel) const { return channel; }
  template <class D>
  static HWY_INLINE hn::Vec<D> Key(D d, const std::byte* from, size_t stride) {
    return LoadBlocks(d, from, stride);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> Value(D d, const std::byte* from, size_t stride) {
    return LoadBlocks(d, from, stride);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> KeyBytes(D, hn::Vec<D> words) {
    return words;
  }
  template <class D>
  static HWY_INLINE void PutKey(D d, hn::Vec<D> words, std::byte* to, size_t stride) {
    StoreBlocks(d, words, to, stride);
  }
  template <class D>
  static HWY_INLINE void PutValue(D d, hn::Vec<D> bytes, std::byte* to, size_t stride) {
    StoreBlocks(d, bytes, to, stride);
  }
};
template <>
struct ByteRow<4> {
  static constexpr size_t kChannels = 32;
  static constexpr size_t kWords[4] = {0, 1, 2, 3};
  HWY_INLINE size_t At(size_t channel) const { return channel; }
  template <class D>
  static HWY_INLINE hn::Vec<D> Key(D d, const std::byte* from, size_t stride) {
    return KeyOf(d, LoadBlocks(d, from, stride), LoadBlocks(d, from + 16, stride));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> Value(D d, const std::byte* from, size_t stride) {
    return JoinNibbles(LoadBlocks(d, from, stride), LoadBlocks(d, from + 16, stride));
  }
  template <class D>
  static HWY_INLINE void PutKey(D d, hn::Vec<D> words, std::byte* to, size_t stride) {
    StoreBlocks(d, FirstOf(d, words), to, stride);
    StoreBlocks(d, SecondOf(d, words), to + 16, stride);
  }
  template <class D>
  static HWY_INLINE void PutValue(D d, hn::Vec<D> bytes, std::byte* to, size_t stride) {
    StoreBlocks(d, LowNibbles(bytes), to, stride);
    StoreBlocks(d, HighNibbles(bytes), to + 16, stride);
  }

  // KeyOf makes words of K from codes of 16 channels and the next 16. FirstOf and SecondOf undo it.
  template <class D>
  static HWY_INLINE hn::Vec<D> KeyOf(D d, hn::Vec<D> first, hn::Vec<D> second) {
    const hn::Repartition<uint64_t, D> d64;
    return hn::BitCast(d, hn::InterleaveLower(d64, JoinPairs(d, first), JoinPairs(d, second)));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> FirstOf(D d, hn::Vec<D> words) {
    const hn::Repartition<uint32_t, D> d32;
    return hn::BitCast(d, hn::InterleaveLower(d32, hn::BitCast(d32, LowNibbles(words)),
                                              hn::BitCast(d32, HighNibbles(words))));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> SecondOf(D d, hn::Vec<D> words) {
    const hn::Repartition<uint32_t, D> d32;
    return hn::BitCast(d, hn::InterleaveUpper(d32, hn::BitCast(d32, LowNibbles(words)),
                                              hn::BitCast(d32, HighNibbles(words))));
  }

 private:
  // Joins every eight bytes, each below 16, to a word with the last four in the high nibbles. A
  // block's two words come into its lower half.
  template <class D>
  static HWY_INLINE hn::Vec<hn::Repartition<uint64_t, D>> JoinPairs(D d, hn::Vec<D> bytes) {
    alignas(16) static constexpr uint8_t kEvenWords[16] = {0, 1, 2, 3, 8, 9, 10, 11,
                                                           0, 1, 2, 3, 8, 9, 10, 11};
    const hn::Repartition<uint64_t, D> d64;
    const auto wide = hn::BitCast(d64, bytes);
    const auto joined = hn::Or(wide, hn::ShiftRight<28>(wide));
    return hn::BitCast(d64, Reorder(d, hn::BitCast(d, joined), kEvenWords));
  }
};

// MLX's rows of 4 bits.
struct NibbleRow {
  static constexpr size_t kChannels = 32;
  static constexpr size_t kWords[4] = {0, 1, 2, 3};
  HWY_INLINE size_t At(size_t channel) const { return channel / 2; }
  // The nibbles 0 ... 7 of a word become 0, 4, 1, 5, 2, 6, 3, 7: bytes 1 and 2 change places, then
  // nibbles 1 and 2 of each half.
  template <class D>
  static HWY_INLINE hn::Vec<D> Key(D d, const std::byte* from, size_t stride) {
    return Swap<4>(d, Swap<8>(d, LoadBlocks(d, from, stride), 0x0000ff00), 0x00f000f0);
  }
  template <class D>
  static HWY_INLINE void PutKey(D d, hn::Vec<D> words, std::byte* to, size_t stride) {
    StoreBlocks(d, Swap<8>(d, Swap<4>(d, words, 0x00f000f0), 0x0000ff00), to, stride);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> Value(D d, const std::byte* from, size_t stride) {
    const auto both = LoadBlocks(d, from, stride);
    const auto even = LowNibbles(both), odd = HighNibbles(both);
    return JoinNibbles(hn::InterleaveLower(d, even, odd), hn::InterleaveUpper(d, even, odd));
  }
  template <class D>
  static HWY_INLINE void PutValue(D d, hn::Vec<D> bytes, std::byte* to, size_t stride) {
    alignas(16) static constexpr uint8_t kEvenThenOdd[16] = {0, 2, 4, 6, 8, 10, 12, 14,
                                                             1, 3, 5, 7, 9, 11, 13, 15};
    const hn::Repartition<uint64_t, D> d64;
    const auto first = hn::BitCast(d64, Reorder(d, LowNibbles(bytes), kEvenThenOdd));
    const auto second = hn::BitCast(d64, Reorder(d, HighNibbles(bytes), kEvenThenOdd));
    const auto even = hn::BitCast(d, hn::InterleaveLower(d64, first, second));
    const auto odd = hn::BitCast(d, hn::InterleaveUpper(d64, first, second));
    StoreBlocks(d, JoinNibbles(even, odd), to, stride);
  }

 private:
  // Swaps the bits of `mask` and those kShift above them in every word.
  template <int kShift, class D>
  static HWY_INLINE hn::Vec<D> Swap(D d, hn::Vec<D> bytes, uint32_t mask) {
    const hn::Repartition<uint32_t, D> d32;
    const auto words = hn::BitCast(d32, bytes);
    const auto differ = hn::And(hn::Xor(words, hn::ShiftRight<kShift>(words)), hn::Set(d32, mask));
    return hn::BitCast(d, hn::Xor(words, hn::Xor(differ, hn::ShiftLeft<kShift>(differ))));
  }
};

// ggml's blocks: q8_0, and q4_0 and q4_1, whose bytes are those of tiled V.
struct ByteBlocks : ByteRow<8> {
  HWY_INLINE size_t At(size_t channel) const { return channel / 32 * 34 + 2 + channel % 32; }
};
struct NibbleBlocks {
  static constexpr size_t kChannels = 32;
  static constexpr size_t kWords[4] = {0, 2, 1, 3};
  size_t head;  // bytes of scales before the codes
  HWY_INLINE size_t At(size_t channel) const { return channel / 32 * (head + 16) + head; }
  template <class D>
  static HWY_INLINE hn::Vec<D> Key(D d, const std::byte* from, size_t stride) {
    return Pair(d, LoadBlocks(d, from, stride));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> KeyBytes(D d, hn::Vec<D> words) {
    return Pair(d, words);
  }
  template <class D>
  static HWY_INLINE void PutKey(D d, hn::Vec<D> words, std::byte* to, size_t stride) {
    StoreBlocks(d, Pair(d, words), to, stride);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> Value(D d, const std::byte* from, size_t stride) {
    return LoadBlocks(d, from, stride);
  }
  template <class D>
  static HWY_INLINE void PutValue(D d, hn::Vec<D> bytes, std::byte* to, size_t stride) {
    StoreBlocks(d, bytes, to, stride);
  }

 private:
  // Of every eight bytes the first four keep their low nibbles and the last four their high
  // nibbles; the other nibbles change places, crosswise. It is its own inverse.
  template <class D>
  static HWY_INLINE hn::Vec<D> Pair(D d, hn::Vec<D> bytes) {
    const hn::Repartition<uint32_t, D> d32;
    const hn::Repartition<uint64_t, D> d64;
    const auto wide = hn::BitCast(d64, bytes);
    const auto others = hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<28>(wide)),
                                    hn::BitCast(d32, hn::ShiftRight<28>(wide)));
    const auto changed = hn::BitCast(d, hn::Set(d64, 0x0f0f0f0ff0f0f0f0));
    return hn::Xor(bytes, hn::And(hn::Xor(bytes, hn::BitCast(d, others)), changed));
  }
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
