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

// What a context's states do not say of it.
struct ContextFacts {
  uint64_t context_tokens = 0;  // that a sequence has room for
  std::string adapters{};       // LoRA, as text
  // The build of llama.cpp and its settings, as text: what decides whether K and V are rotated,
  // where the states do not say it. Empty if it is not known.
  std::string build{};
  std::string salt{};
};

// Returns the space of a model: the layers of the cache of all tokens, then, where there are
// sliding or recurrent layers, one layer for their snapshots. The formats are those of `context`,
// values transposed if the context keeps them so. The weights digest covers the file, the rotation
// of K and V, the types of sliding layers, the adapters, and whether a sequence
// may be longer than the context that a model with longrope was trained in first:
// then llama.cpp turns its keys by other factors (llama_model::get_rope_factors). InvalidArgument
// names what the file and the context disagree in, and is returned for quantized K or V of which
// neither the states nor `build` say whether they are rotated.
absl::StatusOr<SpaceSpec> SpaceOf(const interop::Gguf& gguf, const Digest& file_digest,
                                  const interop::LlamaContext& context, const ContextFacts& facts);

}  // namespace prefixd::llama
