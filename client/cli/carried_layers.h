// Converts the caches of a prompt-cache file to the layers of a space, and back.
//
// Each cache of a CacheList is a layer of its own. A rotating cache that has not wrapped is a
// sliding layer (window = max_size - keep, sinks = keep). A rotating cache that has wrapped becomes
// a record of its rows at exactly its offset (interop/window_record.h), which a state layer keeps.
// A state layer also keeps the arrays of an ArraysCache.
// Pure functions, thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "interop/kv_rows.h"
#include "interop/prompt_cache.h"
#include "prefixd/client.h"

namespace prefixd::cli {

struct CarriedLayer {
  std::string name;                       // "layer 3"; "layer 3.1" inside a CacheList
  std::optional<interop::KvRows> rows{};  // none for an ArraysCache
  std::vector<std::byte> state{};         // state after exactly the file's tokens
  // Returns true if the space keeps the layer as rows, false if as a state. A rotating cache that
  // was read and has wrapped has both rows and a state.
  bool kept_as_rows() const { return rows.has_value() && state.empty(); }
};

struct Carried {
  uint32_t tokens = 0;  // 0 if no cache of the file says how many
  std::vector<CarriedLayer> layers{};
};

// Returns the layers of `file`. InvalidArgument, naming the layer, for a cache of an unknown class
// and for caches with different offsets.
absl::StatusOr<Carried> CarriedOf(const interop::PromptCache& file);
// Returns the caches of `carried`. They take classes, nesting and state shapes from the file
// `like`. If `like` is null, each layer is one cache and states are refused. InvalidArgument names
// the layer that does not fit `like`.
absl::StatusOr<std::vector<interop::MlxCache>> CachesOf(const Carried& carried,
                                                        const interop::PromptCache* like);

// Returns the layer of a space that can keep `layer`.
LayerSpec SpecOf(const CarriedLayer& layer);
// Returns InvalidArgument, saying both, if `spec` has another kind, state size, window or sinks.
absl::Status CheckFits(const CarriedLayer& layer, const LayerSpec& spec);
// Returns the format ("raw/f16") of the first layer kept as rows, or "state" if there is none.
std::string FormatName(const Carried& carried);
uint64_t BytesOf(const Carried& carried);

}  // namespace prefixd::cli
