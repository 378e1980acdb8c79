// The cache objects of mlx-lm, as their classes' state and meta_state say them, to rows and back.
//
// Pure conversions, thread-safe; nothing is quantized or dequantized. Classes: KVCache,
// QuantizedKVCache (meta of 3 and of 5 fields), RotatingKVCache, QuantizedRotatingKVCache (8
// fields, or 4 for its default of 8 bits in groups of 64), ArraysCache alias MambaCache, CacheList.
// Batches of more than one sequence are refused.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "interop/kv_rows.h"
#include "interop/safetensors.h"

namespace prefixd::interop {

// An array of a state; little-endian, row-major. One of no elements stands for None.
struct Array {
  TensorDtype dtype = TensorDtype::kF32;
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes{};                      // in `memory`, or somebody else's
  std::shared_ptr<const std::vector<std::byte>> memory{};  // of arrays made here
  uint64_t elements() const;
};

struct MlxCache {
  std::string class_name;
  std::map<std::string, Array> state{};  // by path: "0" and "1" are K and V, "1.2" is V's biases
  // Fields of meta_state: (offset, group_size, bits), (keep, max_size, offset, _idx), ... KVCache
  // has none, its offset is its arrays' length, or one, the offset: then the rest is not its own.
  std::vector<std::string> meta{};
  std::vector<MlxCache> children{};  // CacheList's
};

// Tokens [0, offset) in the order of their positions, whatever is allocated behind them: of
// KVCache, QuantizedKVCache, RotatingKVCache, QuantizedRotatingKVCache. A rotating cache that has
// wrapped comes in temporal order: [0:keep], [_idx:], [keep:_idx].
// InvalidArgument naming class, field, value and what it should be; also for a cache of no tokens,
// which has nothing to store.
absl::StatusOr<KvRows> ReadKvRows(const MlxCache& cache);
// The object that ReadKvRows reads these rows from, rotating where they are (with _idx at their
// end). InvalidArgument for a format that mlx-lm has no class for: raw and affine ones only, K and
// V alike.
absl::StatusOr<MlxCache> MlxCacheOf(const KvRows& rows);

// Recurrent and convolution state, of constant size: no tokens, never cut.
struct StateArrays {
  std::vector<Array> arrays;  // an empty one stands for None
};
absl::StatusOr<StateArrays> ReadStateArrays(const MlxCache& cache);
MlxCache MlxCacheOf(const StateArrays& state);
// The bytes of all arrays, one after the other: a snapshot of the layer.
std::vector<std::byte> SnapshotOf(const StateArrays& state);
// Arrays of the dtypes and shapes of `like`. InvalidArgument when the snapshot's size is another.
absl::StatusOr<StateArrays> StateOfSnapshot(const StateArrays& like,
                                            std::span<const std::byte> snapshot);

// Tokens that the cache has seen, by its offset; of a CacheList the most of its children. Nothing
// for ArraysCache, which does not know.
absl::StatusOr<std::optional<uint32_t>> TokensOf(const MlxCache& cache);

}  // namespace prefixd::interop
