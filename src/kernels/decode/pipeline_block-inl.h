// The tiles of one block as a pipeline takes them, for one SIMD target: included once per target.
#if defined(PREFIXD_KERNELS_DECODE_PIPELINE_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_PIPELINE_BLOCK_INL_H_
#undef PREFIXD_KERNELS_DECODE_PIPELINE_BLOCK_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_PIPELINE_BLOCK_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/decode/ask-inl.h"
#include "kernels/decode/job.h"
#include "kernels/decode/pipeline_choice-inl.h"
#include "kernels/decode/tile-inl.h"
#include "kernels/decode/unit-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// A block that consists of whole tiles, which all row heads see and whose strips they fill.
class PipelinedBlock {
 public:
  // visit: of any kv head.
  static HWY_INLINE bool Fits(const DecodeJob& job, const DecodeVisit& visit) {
    const uint32_t row_heads = (visit.end_row - visit.first_row) * job.group();
    if (job.shape.soft_cap != 0 || visit.tokens == 0 || visit.tokens % kDecodeTile != 0 ||
        row_heads % kStripHeads != 0) {
      return false;
    }
    for (uint32_t row = visit.first_row; row < visit.end_row; ++row) {
      for (uint32_t first = 0; first < visit.tokens; first += kDecodeTile) {
        const uint64_t seen =
            SeenTokensOf(job.shape, job.rows[row].position, visit.position + first, kDecodeTile);
        if (seen != ~uint64_t{0}) return false;
      }
    }
    return true;
  }

  HWY_INLINE PipelinedBlock(const DecodeJob& job, const DecodeVisit& visit, Pipeline* pipeline)
      : job_(job),
        visit_(visit),
        pipeline_(pipeline),
        format_(job.tensors[visit.format]),
        queries_(job.queries[visit.format]),
        row_heads_((visit.end_row - visit.first_row) * job.group()) {}

  // Attends to the unit of a kv head. next_key: the unit of keys that is read next. far: lines of
  // later units, of which some are asked for.
  HWY_INLINE void Attend(uint32_t kv_head, const UnitPlace& here, const std::byte* next_key,
                         FarLines* far) const {
    const DecodeUnit key{here.key, visit_.key.layout}, value{here.value, visit_.value.layout};
    const size_t first_row_head =
        (size_t{kv_head} * job_.rows.size() + visit_.first_row) * job_.group();
    PipelineTile tile{.query_digit_pitch = size_t{job_.row_heads()} * format_.key.dim};
    for (uint32_t first = 0; first < visit_.tokens; first += kDecodeTile) {
      tile.key = KeysOf(key, first);
      tile.value = ValuesOf(value, first);
      const bool is_last = first + kDecodeTile == visit_.tokens;
      for (uint32_t strip = 0; strip < row_heads_; strip += kStripHeads) {
        if (strip + kStripHeads < row_heads_) {
          AskAgain(&tile);
        } else if (is_last) {
          AskFor({next_key, visit_.key.layout}, 0, &tile);
        } else {
          AskFor(key, first + kDecodeTile, &tile);
        }
        AttendStrip(first_row_head + strip, &tile, far);
      }
    }
  }

 private:
  HWY_INLINE void AttendStrip(size_t row_head, PipelineTile* tile, FarLines* far) const {
    tile->query = queries_.codes + row_head * format_.key.dim;
    tile->terms = queries_.terms + row_head * format_.key.groups;
    tile->first = size_t{visit_.slot} * job_.row_heads() + row_head;
    pipeline_->Attend(*tile, far);
  }
  HWY_INLINE PipelineSide KeysOf(const DecodeUnit& unit, uint32_t first) const {
    const TiledTile tile = Tiled(format_.key, unit, {first, kDecodeTile}, pipeline_->key_tile());
    return SideOf(format_.key, tile, KeyCodesOf(format_.key, tile.unit, tile.tokens));
  }
  HWY_INLINE PipelineSide ValuesOf(const DecodeUnit& unit, uint32_t first) const {
    std::byte* const memory =
        format_.value.in_rows ? pipeline_->NextValueTile(format_.value) : nullptr;
    const TiledTile tile = Tiled(format_.value, unit, {first, kDecodeTile}, memory);
    return SideOf(format_.value, tile, ValueCodesOf(format_.value, tile.unit, tile.tokens));
  }
  static HWY_INLINE PipelineSide SideOf(const DecodeTensor& tensor, const TiledTile& tile,
                                        const TileCodes& codes) {
    const quant::UnitLayout& layout = tile.unit.layout;
    const std::byte* const parameters = tile.unit.bytes + tile.tokens.first * kParameterBytes;
    return {.codes = codes.half[0],
            .scales = parameters + layout.scales_offset,
            .biases = parameters + layout.biases_offset,
            .group_stride = codes.group_stride,
            .parameter_stride = layout.slots * kParameterBytes,
            .bf16 = tensor.format->dtype == quant::Dtype::kBf16};
  }

  // Set the keys that are read next: those of another tile, or the same again. Keys of 64 tokens
  // are as many bytes in rows as in a tile.
  HWY_INLINE void AskFor(const DecodeUnit& unit, uint32_t first, PipelineTile* tile) const {
    const DecodeTensor& key = format_.key;
    tile->near_codes =
        unit.bytes + unit.layout.codes_offset + size_t{first} * key.dim * key.bits / 8;
    tile->near_scales = unit.bytes + unit.layout.scales_offset +
                        first * kParameterBytes * (key.in_rows ? key.groups : 1);
  }
  static HWY_INLINE void AskAgain(PipelineTile* tile) {
    tile->near_codes = tile->key.codes;
    tile->near_scales = tile->key.scales;
  }

  static constexpr size_t kParameterBytes = 2;

  const DecodeJob& job_;
  const DecodeVisit& visit_;
  Pipeline* const pipeline_;
  const DecodeFormat& format_;
  const DecodeQueries& queries_;
  const uint32_t row_heads_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
