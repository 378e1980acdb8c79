// Writes ggml's rows from tiled units, 64 bytes of codes and the scales between them at a time, for
// one SIMD target: included once per target.
//
// Stores wait in a queue behind lines on their way to memory. Stores of 16 bytes of codes or of one
// scale would fill the queue four times as soon.
#if defined(PREFIXD_KERNELS_CONVERT_GGML_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_CONVERT_GGML_ROWS_INL_H_
#undef PREFIXD_KERNELS_CONVERT_GGML_ROWS_INL_H_
#else
#define PREFIXD_KERNELS_CONVERT_GGML_ROWS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/convert/tile_rows-inl.h"
#include "kernels/convert/unit_step.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

inline constexpr size_t kRowTokens = 16;  // tokens that are written together

// kBlocks ggml blocks, each a Head (one 16-bit number or two) and codes. Their codes are 64 bytes.
template <size_t kBlocks, class Head>
class BlockRows {
  static constexpr size_t kHeadWords = sizeof(Head) / 2;
  static constexpr size_t kWords = 32 / kBlocks + kHeadWords;  // 16-bit words of a ggml block

 public:
  static constexpr size_t kBytes = 2 * kBlocks * kWords;

  // Loads the heads of kRowTokens tokens from the step's token `t` on, from channel `c` on.
  HWY_INLINE BlockRows(const UnitStep& step, const std::byte* unit, size_t t, size_t c) {
    const DHead d;
    const size_t slots = step.layout.slots, first = c / 32 * slots + step.first + t;
    const auto head = [&](size_t b) HWY_ATTR { return LoadHeads(step, unit, first + b * slots); };
    if constexpr (kBlocks == 2) {
      hn::StoreInterleaved2(head(0), head(1), d, heads_);
    } else {
      hn::StoreInterleaved4(head(0), head(1), head(2), head(3), d, heads_);
    }
  }

  // Stores codes and heads of one token. The head of ggml block b begins at word b * kWords of the
  // row, where it also stands when the heads of all kBlocks blocks are repeated.
  HWY_INLINE void Store(hn::Vec<DBlocks> codes, size_t token, std::byte* row) const {
    static_assert((kWords - kHeadWords) % (kBlocks * kHeadWords) == 0);
    const __m512i merged = _mm512_mask_expand_epi16(Repeated(token), kCodeWords, codes.raw);
    _mm512_storeu_si512(row, merged);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row + kBytes - 16),
                     _mm512_extracti32x4_epi32(codes.raw, 3));
  }

 private:
  using DHead = hn::FixedTag<Head, kRowTokens>;

  // Bit w: word w of the row's first 64 bytes is codes.
  static constexpr __mmask32 CodeWords() {
    uint32_t words = 0;
    for (size_t w = 0; w < 32; ++w) words |= uint32_t{w % kWords >= kHeadWords} << w;
    return words;
  }
  static constexpr __mmask32 kCodeWords = CodeWords();

  static HWY_INLINE hn::Vec<DHead> LoadHeads(const UnitStep& step, const std::byte* unit,
                                             size_t first) {
    const hn::FixedTag<uint16_t, kRowTokens> d16;
    const auto column = [&](uint64_t offset) HWY_ATTR {
      return hn::LoadU(d16, reinterpret_cast<const uint16_t*>(unit + offset) + first);
    };
    const auto scales = column(step.layout.scales_offset);
    if constexpr (kHeadWords == 1) {
      return scales;
    } else {
      const auto biases = hn::PromoteTo(DHead(), column(step.layout.biases_offset));
      return hn::Or(hn::PromoteTo(DHead(), scales), hn::ShiftLeft<16>(biases));
    }
  }

  HWY_INLINE __m512i Repeated(size_t token) const {
    constexpr size_t kSize = kBlocks * sizeof(Head);
    const auto* heads = reinterpret_cast<const std::byte*>(heads_ + token * kBlocks);
    if constexpr (kSize == 4) {
      return _mm512_set1_epi32(static_cast<int32_t>(LoadWord<4>(heads)));
    } else if constexpr (kSize == 8) {
      return _mm512_set1_epi64(static_cast<int64_t>(LoadWord<8>(heads)));
    } else {
      return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(heads)));
    }
  }

  alignas(64) Head heads_[kRowTokens * kBlocks];
};

// Loads codes of 16 of a step's tokens, 16 bytes of each: `a` has those of tokens 0, 4, 8 and 12;
// `b`, `c` and `d` have those of the first, second and third tokens after them.
template <class Row>
class BlockCodes {
 public:
  HWY_INLINE BlockCodes(const UnitStep& step, const std::byte* unit)
      : step_(step), unit_(unit), place_(step) {}

  HWY_INLINE Quad<DBlocks> Load(size_t t, size_t c) const {
    const DBlocks d;
    if (step_.shape.side == quant::Side::kKey) {
      const std::byte* tile = unit_ + place_.offset + c / Row::kChannels * 4 * place_.pitch + 4 * t;
      const Quad<DBlocks> words = LoadKeyQuad<Row>(d, tile, place_.pitch);
      return {Row::KeyBytes(d, words.a), Row::KeyBytes(d, words.b), Row::KeyBytes(d, words.c),
              Row::KeyBytes(d, words.d)};
    }
    const size_t group = step_.shape.format.group_size, quad_bytes = group / Row::kChannels * 64;
    const std::byte* runs = unit_ +
                            (c / group * step_.layout.slots + step_.first + t) / 4 * quad_bytes +
                            c % group / Row::kChannels * 64;
    return UnzipTokens(d, LoadRuns(d, runs, quad_bytes));
  }

 private:
  const UnitStep& step_;
  const std::byte* const unit_;
  const KeyPlace place_;
};

template <class Row, class Rows, class Beside>
HWY_INLINE void LoadBlockRowsOf(const UnitStep& step, const std::byte* unit, const StepRows& to,
                                const Beside& beside) {
  constexpr size_t kChannels = 4 * Row::kChannels;
  const size_t stride = to.codes_stride;
  const BlockCodes<Row> blocks(step, unit);
  for (size_t t = 0; t < step.count; t += kRowTokens) {
    std::byte* row = to.codes + t * stride;
    for (size_t c = 0; c < step.shape.dim; c += kChannels, row += Rows::kBytes) {
      beside();
      const Rows rows(step, unit, t, c);
      const auto store = [&](hn::Vec<DBlocks> first, hn::Vec<DBlocks> second,
                             hn::Vec<DBlocks> third, hn::Vec<DBlocks> fourth,
                             size_t token) HWY_ATTR {
        const Quad<DBlocks> codes = TransposeBlocks(DBlocks(), {first, second, third, fourth});
        rows.Store(codes.a, token, row + token * stride);
        rows.Store(codes.b, token + 4, row + (token + 4) * stride);
        rows.Store(codes.c, token + 8, row + (token + 8) * stride);
        rows.Store(codes.d, token + 12, row + (token + 12) * stride);
      };
      const auto first = blocks.Load(t, c), second = blocks.Load(t, c + Row::kChannels);
      beside();
      const auto third = blocks.Load(t, c + 2 * Row::kChannels);
      const auto fourth = blocks.Load(t, c + 3 * Row::kChannels);
      beside();
      store(first.a, second.a, third.a, fourth.a, 0);
      store(first.b, second.b, third.b, fourth.b, 1);
      beside();
      store(first.c, second.c, third.c, fourth.c, 2);
      store(first.d, second.d, third.d, fourth.d, 3);
    }
  }
}

HWY_INLINE bool HasBlockRows(const UnitStep& step) {
  const size_t channels = 64 * 8 / step.shape.format.bits;
  return step.shape.format.codec != quant::Codec::kMlxAffine && step.shape.dim % channels == 0 &&
         step.first % 4 == 0 && step.count % kRowTokens == 0;
}
// Requires: HasBlockRows.
template <class Beside>
HWY_INLINE void LoadBlockRows(const UnitStep& step, const std::byte* unit, const StepRows& to,
                              const Beside& beside) {
  if (step.shape.format.bits == 8) {
    return LoadBlockRowsOf<ByteBlocks, BlockRows<2, uint16_t>>(step, unit, to, beside);
  }
  step.has_biases() ? LoadBlockRowsOf<NibbleBlocks, BlockRows<4, uint32_t>>(step, unit, to, beside)
                    : LoadBlockRowsOf<NibbleBlocks, BlockRows<4, uint16_t>>(step, unit, to, beside);
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
