// Defines layout tiled: the place of every code, scale and bias in a unit.
//
// Codes are in 32-bit little-endian words, so that an instruction that multiplies the four bytes of
// a word needs no sum across lanes. A word of K holds channels of one token, a word of V four
// tokens of a channel. `slots` is LayoutOfUnit().slots.
//  - K codes: [tile of 32 slots, the last may have 16][channel / C][slot of the tile][word]. At 8
//    bits, C is 4 and byte j is channel C * k + j. At 4 bits, C is 8 and byte j has channel
//    C * k + j in its low nibble and channel C * k + 4 + j in its high nibble.
//  - V codes: [group of channels][slot / 4][run of the group][16 lanes][word]. Byte j is slot
//    4 * s + j. At 8 bits a run is 16 channels. At 4 bits it is 32: channel `lane` is in the low
//    nibble, channel `lane` + 16 in the high one.
//  - scales, then biases: [group][slot] of the scale dtype. q8_0 and q4_0 have no biases; q4_1 has
//    its m there.
//
// The codes are those of MLX and ggml: unsigned, except q8_0's signed bytes. Pure, thread-safe.
#pragma once
#include <cstdint>

#include "quant/unit.h"

namespace prefixd::quant {

inline constexpr uint32_t kTileSlots = 32;   // of K
inline constexpr uint32_t kValueLanes = 16;  // channels side by side in V
inline constexpr uint32_t kTokensAWord = 4;  // of V
inline constexpr uint32_t kWordBytes = 4;

class TiledPlaces {
 public:
  // Requires: the unit's layout is kTiled and Validate(format, dim) is OK.
  explicit TiledPlaces(const UnitShape& unit);

  // ByteOf returns the offset in the unit of the byte that holds the code. ShiftOf returns the bit
  // of that byte where the code begins: 0 or 4.
  uint64_t ByteOf(uint32_t token, uint32_t channel) const;
  uint32_t ShiftOf(uint32_t channel) const;
  // Return offsets in the unit. BiasOf requires that the format has biases.
  uint64_t ScaleOf(uint32_t token, uint32_t group) const;
  uint64_t BiasOf(uint32_t token, uint32_t group) const;

  const UnitLayout& layout() const { return layout_; }

 private:
  uint64_t KeyByteOf(uint32_t token, uint32_t channel) const;
  uint64_t ValueByteOf(uint32_t token, uint32_t channel) const;

  const UnitShape unit_;
  const UnitLayout layout_;
  const bool nibbles_;
};

// CopyTokens between two tiled units.
void CopyTiledTokens(const ConstUnitTokens& from, const UnitTokens& to, uint32_t count);

}  // namespace prefixd::quant
