// Which space the caches of a llama.cpp context belong to: what decides their bytes.
//
// Pure functions but for files that are read, thread-safe.
#pragma once
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "interop/gguf.h"
#include "interop/llama_state.h"
#include "prefixd/client.h"

namespace prefixd::llama {

// Returns the space of a model: the layers of the cache of all tokens, then, where there are
// sliding or recurrent layers, one layer for their snapshots. The formats are those of `context`,
// values transposed if the context keeps them so. The weights digest covers the file, the rotation
// of K and V, the types of sliding layers, the `adapters` (LoRA, as text), and whether a sequence
// of `context_tokens` is longer than the context that a model with longrope was trained in first:
// then llama.cpp turns its keys by other factors (llama_model::get_rope_factors). InvalidArgument
// names what the file and the context disagree in.
absl::StatusOr<SpaceSpec> SpaceOf(const interop::Gguf& gguf, const Digest& file_digest,
                                  const interop::LlamaContext& context, uint64_t context_tokens,
                                  const std::string& adapters, const std::string& salt);

}  // namespace prefixd::llama
