// The caches of a prompt-cache file as the layers of a space, and back.
//
// A CacheList stands for one layer for each of its caches. A rotating cache that has not wrapped is
// a sliding layer (window = max_size - keep, sinks = keep); one that has is a record of its rows at
// exactly its offset (interop/window_record.h), which a state layer keeps; so are the arrays of an
// ArraysCache.
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
  std::string name;                       // "layer 3", "layer 3.1" of a CacheList
  std::optional<interop::KvRows> rows{};  // of an ArraysCache none
  std::vector<std::byte> state{};         // after exactly the tokens of the file
  // Else it is kept as a state; a rotating cache that was read and has wrapped has both.
  bool kept_as_rows() const { return rows.has_value() && state.empty(); }
};

struct Carried {
  uint32_t tokens = 0;  // 0: no cache of the file says how many
  std::vector<CarriedLayer> layers{};
};

// InvalidArgument naming layer and class for caches that are not known, and for different offsets.
absl::StatusOr<Carried> CarriedOf(const interop::PromptCache& file);
// The caches of `layers`. `like`: a file whose classes, nesting and, of states, shapes they have;
// null: one cache a layer, and no states. InvalidArgument naming the layer that it has otherwise.
absl::StatusOr<std::vector<interop::MlxCache>> CachesOf(const Carried& carried,
                                                        const interop::PromptCache* like);

// The layer of a space that a cache of the file makes.
LayerSpec SpecOf(const CarriedLayer& layer);
// InvalidArgument when the space has another kind, size or window at that layer, saying both.
absl::Status CheckFits(const CarriedLayer& layer, const LayerSpec& spec);
// "raw/f16", of the first layer that has rows; "state" where none has.
std::string FormatName(const Carried& carried);
uint64_t BytesOf(const Carried& carried);

}  // namespace prefixd::cli
