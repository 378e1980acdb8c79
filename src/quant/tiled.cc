#include "quant/tiled.h"

#include <algorithm>
#include <cstring>

namespace prefixd::quant {

TiledPlaces::TiledPlaces(const UnitShape& unit)
    : unit_(unit), layout_(LayoutOf(unit)), nibbles_(unit.format.bits == 4) {}

uint64_t TiledPlaces::ByteOf(uint32_t token, uint32_t channel) const {
  return unit_.side == Side::kKey ? KeyByteOf(token, channel) : ValueByteOf(token, channel);
}

uint32_t TiledPlaces::ShiftOf(uint32_t channel) const {
  if (!nibbles_) return 0;
  const uint32_t low_nibbles = unit_.side == Side::kKey ? kWordBytes : kValueLanes;
  return channel % (2 * low_nibbles) < low_nibbles ? 0 : 4;
}

uint64_t TiledPlaces::KeyByteOf(uint32_t token, uint32_t channel) const {
  const uint32_t channels_a_word = nibbles_ ? 2 * kWordBytes : kWordBytes;
  const uint64_t words_a_token = unit_.dim / channels_a_word;
  const uint64_t first_slot = token / kTileSlots * kTileSlots;
  const uint64_t tile_slots = std::min<uint64_t>(kTileSlots, layout_.slots - first_slot);
  const uint64_t word =
      first_slot * words_a_token + channel / channels_a_word * tile_slots + token % kTileSlots;
  return word * kWordBytes + channel % kWordBytes;
}

uint64_t TiledPlaces::ValueByteOf(uint32_t token, uint32_t channel) const {
  const uint32_t run_channels = nibbles_ ? 2 * kValueLanes : kValueLanes;
  const uint64_t runs = unit_.format.group_size / run_channels;
  const uint64_t group = channel / unit_.format.group_size;
  const uint32_t in_group = channel % unit_.format.group_size;
  const uint64_t quads = layout_.slots / kTokensAWord;
  const uint64_t run = (group * quads + token / kTokensAWord) * runs + in_group / run_channels;
  return (run * kValueLanes + in_group % kValueLanes) * kWordBytes + token % kTokensAWord;
}

uint64_t TiledPlaces::ScaleOf(uint32_t token, uint32_t group) const {
  return layout_.scales_offset + (group * layout_.slots + token) * DtypeBytes(unit_.format.dtype);
}

uint64_t TiledPlaces::BiasOf(uint32_t token, uint32_t group) const {
  return layout_.biases_offset + (group * layout_.slots + token) * DtypeBytes(unit_.format.dtype);
}

namespace {

// Copies words of K, each of one token. The same words of a tile's tokens are side by side.
void CopyKeyWords(const TiledPlaces& from, const ConstUnitTokens& source, const TiledPlaces& to,
                  const UnitTokens& target, uint32_t count) {
  const uint32_t channels_a_word = source.shape.format.bits == 4 ? 2 * kWordBytes : kWordBytes;
  for (uint32_t done = 0; done < count;) {
    const uint32_t at = source.begin + done, put = target.begin + done;
    const uint32_t run =
        std::min({count - done, kTileSlots - at % kTileSlots, kTileSlots - put % kTileSlots});
    for (uint32_t c = 0; c < source.shape.dim; c += channels_a_word) {
      std::memcpy(target.unit + to.ByteOf(put, c), source.unit + from.ByteOf(at, c),
                  size_t{run} * kWordBytes);
    }
    done += run;
  }
}

// Copies words of V, each of four tokens: whole where both sides have the same four tokens.
void CopyValueWords(const TiledPlaces& from, const ConstUnitTokens& source, const TiledPlaces& to,
                    const UnitTokens& target, uint32_t count) {
  const uint32_t run_channels = source.shape.format.bits == 4 ? 2 * kValueLanes : kValueLanes;
  for (uint32_t done = 0; done < count;) {
    const uint32_t at = source.begin + done, put = target.begin + done;
    const bool whole =
        at % kTokensAWord == 0 && put % kTokensAWord == 0 && count - done >= kTokensAWord;
    for (uint32_t c = 0; c < source.shape.dim; c += run_channels) {
      const std::byte* words = source.unit + from.ByteOf(at, c);
      std::byte* copy = target.unit + to.ByteOf(put, c);
      if (whole) {
        std::memcpy(copy, words, kValueLanes * kWordBytes);
        continue;
      }
      for (uint32_t lane = 0; lane < kValueLanes; ++lane) {
        copy[lane * kWordBytes] = words[lane * kWordBytes];
      }
    }
    done += whole ? kTokensAWord : 1;
  }
}

}  // namespace

void CopyTiledTokens(const ConstUnitTokens& from, const UnitTokens& to, uint32_t count) {
  const TiledPlaces source(from.shape), target(to.shape);
  if (from.shape.side == Side::kKey) {
    CopyKeyWords(source, from, target, to, count);
  } else {
    CopyValueWords(source, from, target, to, count);
  }
  const RowBytes row = BytesOfStoredRow(from.shape.format, from.shape.dim);
  const size_t bytes = size_t{count} * DtypeBytes(from.shape.format.dtype);
  for (uint32_t g = 0; g < from.shape.dim / from.shape.format.group_size; ++g) {
    std::memcpy(to.unit + target.ScaleOf(to.begin, g), from.unit + source.ScaleOf(from.begin, g),
                bytes);
    if (row.biases == 0) continue;
    std::memcpy(to.unit + target.BiasOf(to.begin, g), from.unit + source.BiasOf(from.begin, g),
                bytes);
  }
}

}  // namespace prefixd::quant
