// A layer group: layers that live and die together, in the same heads, dims and formats.
//
// Plain values. All three layer kinds, shards and ladders stand here from the start, since they are part of
// a space's identity; which of them are served is decided in cache/.
#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "quant/format.h"

namespace prefixd::block {

enum class LayerKind : uint8_t { kFull = 1, kSliding = 2, kState = 3 };
enum class ValueSource : uint8_t { kStored = 1, kNone = 2, kKeyPrefix = 3 };

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
  uint32_t value_prefix_dim = 0;   // kKeyPrefix: V is the first so many elements of K
  uint32_t tensor_rank = 0;        // which shard of the parallel plan holds these heads
  uint32_t pipeline_rank = 0;
  uint32_t window = 0;             // kSliding: tokens
  uint32_t sink_tokens = 0;        // kSliding
  uint64_t state_bytes = 0;        // kState: bytes of one snapshot of the whole group
  std::vector<quant::KvFormat> ladder;  // finest first; a page's `rung` indexes it; empty for kState
  auto operator<=>(const LayerGroup&) const = default;
};

// InvalidArgument naming group, field, value and limit.
absl::Status Validate(const LayerGroup& group);

}  // namespace prefixd::block
