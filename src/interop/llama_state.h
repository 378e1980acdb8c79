// llama.cpp's saved state of one sequence (llama_state_seq_save_file, magic "ggsq", version 2), in
// the unified layout: one stream of cells that hold K and V of every layer, the keys of all layers
// before the values of all.
//
// Pure functions, thread-safe; nothing is quantized or dequantized. Little-endian, as the blob is.
// Blobs with an extension in each cell (models with several positions per token) are not supported.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "interop/kv_rows.h"

namespace prefixd::interop {

// The heads and dims of one layer, which the blob does not hold: its rows are all heads of a token.
struct LlamaLayerShape {
  uint32_t kv_heads = 0, key_dim = 0, value_dim = 0;
};

struct LlamaState {
  std::vector<uint32_t> tokens;
  std::vector<KvRows> layers;      // in the order of positions 0 to rows - 1
  bool values_transposed = false;  // V is [channel][token], without flash attention: raw only
};

// InvalidArgument names what was seen and what was wanted. It is returned for another magic or
// version, more than one stream or sequence, positions that are not 0 to n - 1 (a shifted or
// windowed cache is no prefix), types and row sizes that are not those of `shapes`, and a blob that
// is too short or too long.
absl::StatusOr<LlamaState> ReadLlamaState(std::span<const std::byte> blob,
                                          std::span<const LlamaLayerShape> shapes);
// InvalidArgument if llama.cpp has no type for the rows, they are no prefix, or layers differ in
// length.
absl::StatusOr<std::vector<std::byte>> WriteLlamaState(const LlamaState& state);

}  // namespace prefixd::interop
