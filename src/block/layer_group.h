// A layer group: layers of the same heads, dims and formats, whose pages are kept and dropped as
// one.
//
// Plain values. All three layer kinds, shards and ladders are part of a space's identity, so they
// are here from the start. cache/ decides which of them are served.
#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "quant/format.h"

namespace prefixd::block {

using prefixd::LayerKind;
using prefixd::ValueSource;

inline constexpr uint32_t kMaxGroups = 64;
inline constexpr uint32_t kMaxLadder = 4;

struct LayerGroup {
  std::string name;
  LayerKind kind = LayerKind::kFull;
  std::vector<uint32_t> layers;  // model layer indexes, ascending
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;
  ValueSource value_source = ValueSource::kStored;
  uint32_t value_prefix_dim = 0;  // kKeyPrefix: V is this many first elements of K
  uint32_t tensor_rank = 0;       // shard of the parallel plan that holds these heads
  uint32_t pipeline_rank = 0;
  uint32_t window = 0;       // kSliding: tokens
  uint32_t sink_tokens = 0;  // kSliding
  uint64_t state_bytes = 0;  // kState: bytes of one snapshot of the whole group
  std::vector<quant::KvFormat>
      ladder;  // finest first; a page's `rung` indexes it; empty for kState
  auto operator<=>(const LayerGroup&) const = default;
};

inline bool StoresValues(const LayerGroup& group) {
  return group.value_source == ValueSource::kStored;
}

// Limits of a group. With them, page sizes fit in 32 bits at every block_tokens.
inline constexpr uint32_t kMaxLayers = 4096;  // layer indexes are below this
inline constexpr uint32_t kMaxKvHeads = 1024;
inline constexpr uint32_t kMaxHeadDim = 16384;
inline constexpr uint64_t kMaxPageBytes = uint64_t{64} << 20;   // of a 128-token page
inline constexpr uint64_t kMaxStateBytes = uint64_t{64} << 30;  // 65,536 parts of 1 MiB

// Returns InvalidArgument naming the first layer, the format or field, value and limit. Fields that
// a kind does not use must hold their defaults, so that a group has one spelling only. kSliding
// alone uses window and sink_tokens, kState alone uses state_bytes, kFull and kSliding use the
// ladder and the fields from kv_heads to value_prefix_dim.
//   kStored     value_dim >= 1, value_prefix_dim 0
//   kNone       value_dim 0, value_prefix_dim 0
//   kKeyPrefix  value_dim = value_prefix_dim, in 1..key_dim
// A ladder has no rung twice, and no rung with more bytes per token than the one before it. If no
// value is stored, a rung's value format repeats its key format.
absl::Status Validate(const LayerGroup& group);

// Returns the bytes of one token in one layer, all heads, without padding. Requires:
// Validate(group) is OK, kind kFull or kSliding, rung < ladder size.
uint64_t TokenBytesPerLayer(const LayerGroup& group, uint32_t rung);

}  // namespace prefixd::block
