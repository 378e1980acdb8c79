// Where a tile of a tiled unit lies and what its scales and biases are, for one SIMD target:
// included once per target.
#if defined(PREFIXD_KERNELS_DECODE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_TILE_INL_H_
#undef PREFIXD_KERNELS_DECODE_TILE_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_TILE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/decode/dot_input-inl.h"
#include "kernels/decode/job.h"

#if PREFIXD_KERNELS_HAVE_DECODE
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// One unit of the block that is read.
struct DecodeUnit {
  const std::byte* bytes = nullptr;
  quant::UnitLayout layout;
};

inline constexpr uint32_t kTileStep = 16;  // tokens of a tile whose words lie side by side

// At most kDecodeTile tokens of a unit; `first` is a multiple of kDecodeTile.
struct DecodeTokens {
  uint32_t first = 0;
  uint32_t tokens = 0;
  uint32_t steps() const { return (tokens + kTileStep - 1) / kTileStep; }
};

// Codes of one tile. Keys: its first and second 32 tokens. Values: both halves are the tile.
struct TileCodes {
  const std::byte* half[2] = {};
  size_t stride = 0;        // bytes from 4 channels (nibbles: 8; values: 4 tokens) to the next ones
  size_t group_stride = 0;  // bytes from a group to the next one
};

HWY_INLINE TileCodes KeyCodesOf(const DecodeTensor& key, const DecodeUnit& unit,
                                const DecodeTokens& tile) {
  constexpr uint32_t kHalf = 32;
  const size_t words = key.dim * key.bits / 32;
  const std::byte* const codes = unit.bytes + unit.layout.codes_offset;
  const size_t slots = HWY_MIN(unit.layout.slots - tile.first, uint64_t{kHalf});
  TileCodes found;
  found.stride = slots * 4;
  found.group_stride = key.group * key.bits / 32 * found.stride;
  found.half[0] = codes + tile.first * words * 4;
  found.half[1] = found.half[0] + kHalf * words * 4;
  return found;
}
// Returns the second half, which may have only 16 slots.
HWY_INLINE TileCodes SecondHalf(const DecodeTensor& key, const DecodeUnit& unit,
                                const DecodeTokens& tile, const TileCodes& codes) {
  const uint64_t slots = HWY_MIN(unit.layout.slots - tile.first - 32, uint64_t{32});
  TileCodes half;
  half.half[0] = half.half[1] = codes.half[1];
  half.stride = slots * 4;
  half.group_stride = key.group * key.bits / 32 * half.stride;
  return half;
}

HWY_INLINE TileCodes ValueCodesOf(const DecodeTensor& value, const DecodeUnit& unit,
                                  const DecodeTokens& tile) {
  TileCodes found;
  found.stride = value.group * value.bits / 8 * 4;
  found.group_stride = unit.layout.slots / 4 * found.stride;
  found.half[0] = found.half[1] =
      unit.bytes + unit.layout.codes_offset + tile.first / 4 * found.stride;
  return found;
}

// Scales and biases of a tile's tokens as floats [group][kDecodeTile]; 0 after its last token,
// whatever is stored there. A bias is what the middle code stands for: 0 where the codec has none.
// kWhole: the tile has kDecodeTile tokens.
template <quant::Dtype kDtype, bool kWhole>
class TileParameters {
 public:
  HWY_INLINE TileParameters(const DecodeTensor& tensor, const DecodeUnit& unit,
                            const DecodeTokens& tile)
      : tensor_(tensor), unit_(unit), tile_(tile) {}

  HWY_INLINE void Widen(float* scales, float* biases) const {
    const VF middle = hn::Set(DF(), tensor_.middle);
    for (uint32_t g = 0; g < tensor_.groups; ++g) {
      for (uint32_t slot = 0; slot < kDecodeTile; slot += kLanes) {
        const VF scale = Load(unit_.layout.scales_offset, g, slot);
        VF bias = hn::Zero(DF());
        if (tensor_.biased) {
          bias = hn::MulAdd(scale, middle, Load(unit_.layout.biases_offset, g, slot));
        }
        hn::StoreU(scale, DF(), scales + g * kDecodeTile + slot);
        hn::StoreU(bias, DF(), biases + g * kDecodeTile + slot);
      }
    }
  }

 private:
  HWY_INLINE VF Load(uint64_t offset, uint32_t g, uint32_t slot) const {
    constexpr size_t kBytes = kDtype == quant::Dtype::kF32 ? 4 : 2;
    const std::byte* from =
        unit_.bytes + offset + (g * unit_.layout.slots + tile_.first + slot) * kBytes;
    if constexpr (kWhole) return LoadWidened<kDtype>(from);
    if (slot >= tile_.tokens) return hn::Zero(DF());
    return hn::IfThenElseZero(hn::FirstN(DF(), tile_.tokens - slot), LoadWidened<kDtype>(from));
  }

  const DecodeTensor& tensor_;
  const DecodeUnit& unit_;
  const DecodeTokens& tile_;
};
template <bool kWhole>
HWY_INLINE void WidenTile(const DecodeTensor& tensor, const DecodeUnit& unit,
                          const DecodeTokens& tile, float* scales, float* biases) {
  switch (tensor.format->dtype) {
    case quant::Dtype::kF16:
      return TileParameters<quant::Dtype::kF16, kWhole>(tensor, unit, tile).Widen(scales, biases);
    case quant::Dtype::kBf16:
      return TileParameters<quant::Dtype::kBf16, kWhole>(tensor, unit, tile).Widen(scales, biases);
    default:
      return TileParameters<quant::Dtype::kF32, kWhole>(tensor, unit, tile).Widen(scales, biases);
  }
}
HWY_NOINLINE HWY_ATTR void WidenTile(const DecodeTensor& tensor, const DecodeUnit& unit,
                                     const DecodeTokens& tile, float* scales, float* biases) {
  if (tensor.raw) return;
  if (tile.tokens == kDecodeTile) return WidenTile<true>(tensor, unit, tile, scales, biases);
  WidenTile<false>(tensor, unit, tile, scales, biases);
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
