// llama.cpp's saved state of one sequence: what llama_state_seq_save_file and the server's
// /slots?action=save write (magic "ggsq", versions 2, 3 and 4), and what llama_state_seq_get_data
// gives (magic 0xaf143cd8, which names no version: it is read as version 4, and if it is none as
// 3). Source: src/llama-context.cpp and src/llama-kv-cache.cpp of llama.cpp, blobs of build 11549,
// and of the llama.cpp in llama-cpp-python 0.3.36 (version 3).
//
// A state is one cache after another: that of the layers with full attention, that of the sliding
// layers if there are any, and the states of recurrent layers, which are taken as they are. A cache
// is the K and V of its layers, the keys of all before the values of all, one row of all heads for
// each token. Between the heads of the tensors nothing is packed or padded, so a state is mapped,
// not copied: LlamaStateMap says where each tensor stands.
//
// Behind the state of a model whose caches cannot be cut anywhere a server appends its context
// checkpoints (magic "SCKP", version 1): the sliding cache and the recurrent states as they were
// after fewer tokens, each as a state in memory. Source: files of build 11549.
//
// Pure functions, thread-safe; nothing is quantized or dequantized. Little-endian, as the state is.
// States with an extension in each cell (models with several positions per token) and those of
// models without attention are refused.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "interop/kv_rows.h"

namespace prefixd::interop {

inline constexpr uint32_t kNewestLlamaVersion = 4, kOldestLlamaVersion = 2;

// K or V of one layer, as every token has it.
struct LlamaTensor {
  quant::TensorFormat format;  // layout rows; no rotation, see LlamaCache
  uint64_t token_bytes = 0;    // of all heads of a token
  bool operator==(const LlamaTensor&) const = default;
};

struct LlamaCache {
  uint32_t streams = 1;            // of the context; one of them holds the sequence
  bool values_transposed = false;  // [head][channel][token], without flash attention: raw only
  // Elements that one Hadamard transform mixes before quantization, 0 for none. Earlier versions
  // than 4 do not say it, see IsRotationUnknown().
  uint32_t key_rotation = 0, value_rotation = 0;
  std::vector<LlamaTensor> keys, values;  // of each layer
  bool operator==(const LlamaCache&) const = default;
};

// What all states of one context of llama.cpp have in common. Another context loads a state only if
// all of it is equal.
struct LlamaContext {
  uint32_t version = kNewestLlamaVersion;
  bool in_memory = false;          // of llama_state_seq_get_data, without tokens
  bool packed_tokens = false;      // servers that know images: -1, 1, count, tokens, 0
  std::vector<LlamaCache> caches;  // full attention, then sliding layers
  uint64_t recurrent_bytes = 0;    // of recurrent layers, 0 if there are none
  bool operator==(const LlamaContext&) const = default;
};

// Returns whether llama.cpp may have rotated rows of `dim` elements, and the state does not say so:
// since its change 21038 it rotates quantized rows of a multiple of 64 elements, unless the
// environment forbids it, and says it from version 4 on.
bool IsRotationUnknown(const LlamaContext& context, const LlamaTensor& tensor, uint32_t dim);

// Where a cache stands in a state.
struct LlamaCacheMap {
  uint32_t first = 0;  // the cells are of tokens [first, first + cells)
  uint32_t cells = 0;
  std::vector<uint32_t> order;         // order[cell] is its token, less `first`; empty: in order
  std::vector<uint64_t> keys, values;  // of each layer: where its rows begin in the state
};

// What sliding and recurrent layers held after fewer tokens.
struct LlamaCheckpoint {
  uint32_t length = 0;     // tokens
  LlamaCacheMap sliding;   // of no cells if the context has no second cache
  uint64_t recurrent = 0;  // where the states begin, if the context has any
};

struct LlamaStateMap {
  LlamaContext context;
  std::vector<uint32_t> tokens;              // may be more than `length`
  uint32_t length = 0;                       // tokens that were computed
  std::vector<LlamaCacheMap> caches;         // as those of the context; the first begins at token 0
  uint64_t recurrent = 0;                    // where the states after `length` tokens begin
  std::vector<LlamaCheckpoint> checkpoints;  // shorter than `length`, in the order of the file
  uint64_t bytes = 0;                        // of the whole state
};

// InvalidArgument names what was seen and what was expected. It is returned for another magic or
// version, tokens that are images, cells of more than one stream or sequence, tokens that are not
// all there (a shifted cache is no prefix), unknown types, and a state that is too short or too
// long. Checkpoints of an unknown version, of another context or of no use are passed over.
absl::StatusOr<LlamaStateMap> MapLlamaState(std::span<const std::byte> state);
// Returns the map of the same state cut at a checkpoint of it. The cache of all tokens keeps its
// cells beyond that.
LlamaStateMap CutLlamaState(const LlamaStateMap& map, const LlamaCheckpoint& at);

// Returns where a state of the first `length` tokens holds what; `first` as LlamaCacheMap::first of
// each cache; it has no checkpoints. Requires: context as MapLlamaState gives it.
LlamaStateMap LayOutLlamaState(const LlamaContext& context, std::span<const uint32_t> tokens,
                               uint32_t length, std::span<const uint32_t> first);
// Writes all of a state but its rows and recurrent states. Requires: `map` is of LayOutLlamaState,
// state has map.bytes.
void WriteLlamaHeads(const LlamaStateMap& map, std::span<std::byte> state);

// --- whole states as rows (prefixctl import and export)

// The heads and dims of one layer, which a state does not hold: its rows are all heads of a token.
struct LlamaLayerShape {
  uint32_t kv_heads = 0, key_dim = 0, value_dim = 0;
};

struct LlamaState {
  std::vector<uint32_t> tokens;
  std::vector<KvRows> layers;  // in the order of positions 0 to rows - 1; formats say the rotation
  bool values_transposed = false;
};

// Errors are those of MapLlamaState; InvalidArgument too if rows are not of `shapes`, if nobody
// knows whether they are rotated, or if the model has sliding or recurrent layers.
absl::StatusOr<LlamaState> ReadLlamaState(std::span<const std::byte> state,
                                          std::span<const LlamaLayerShape> shapes);
// Writes the newest version, with a plain list of tokens. InvalidArgument if llama.cpp has no type
// for the rows, they are no prefix, or layers differ in length.
absl::StatusOr<std::vector<std::byte>> WriteLlamaState(const LlamaState& state);

}  // namespace prefixd::interop
