// Converts mlx-lm's cache objects, given as their classes' state and meta_state, to rows and back.
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

// An array of a state, little-endian, row-major. An array of no elements stands for None.
struct Array {
  TensorDtype dtype = TensorDtype::kF32;
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes{};  // in `memory`, or in memory of somebody else
  std::shared_ptr<const std::vector<std::byte>> memory{};  // owns the bytes of arrays made here
  uint64_t elements() const;
};

struct MlxCache {
  std::string class_name;
  std::map<std::string, Array> state{};  // by path: "0" and "1" are K and V, "1.2" is V's biases
  // Fields of meta_state: (offset, group_size, bits), (keep, max_size, offset, _idx), ... KVCache
  // has none, and its offset is the length of its arrays; or it has the offset alone, and what its
  // arrays hold beyond the offset is not part of it.
  std::vector<std::string> meta{};
  std::vector<MlxCache> children{};  // of a CacheList
};

// Returns the tokens that the cache holds, in the order of their positions, without what is
// allocated after them. Reads KVCache, QuantizedKVCache, RotatingKVCache and
// QuantizedRotatingKVCache. A rotating cache that has wrapped is read in temporal order: [0:keep],
// [_idx:], [keep:_idx]. InvalidArgument names class, field, value and what it should be. A cache of
// no tokens is an error too: it has nothing to store.
absl::StatusOr<KvRows> ReadKvRows(const MlxCache& cache);
// Returns the object that ReadKvRows reads these rows from, a rotating one (with _idx at its end)
// if max_size is set. InvalidArgument for formats that mlx-lm has no class for: K and V must both
// be raw or both be affine.
absl::StatusOr<MlxCache> MlxCacheOf(const KvRows& rows);

// Recurrent and convolution state, of constant size. It has no tokens and is never cut.
struct StateArrays {
  std::vector<Array> arrays;  // an empty one stands for None
};
absl::StatusOr<StateArrays> ReadStateArrays(const MlxCache& cache);
MlxCache MlxCacheOf(const StateArrays& state);
// Returns the bytes of all arrays, one after the other: a snapshot of the layer.
std::vector<std::byte> SnapshotOf(const StateArrays& state);
// Returns arrays of the dtypes and shapes of `like`. InvalidArgument if the snapshot has another
// size.
absl::StatusOr<StateArrays> StateOfSnapshot(const StateArrays& like,
                                            std::span<const std::byte> snapshot);

// Returns how many tokens the cache has seen, by its offset; for a CacheList, the largest number
// among its children. Returns nullopt for ArraysCache, which does not know.
absl::StatusOr<std::optional<uint32_t>> TokensOf(const MlxCache& cache);

}  // namespace prefixd::interop
