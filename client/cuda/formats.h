// What formats and tensors of cuda.h mean, or why the GPU cannot have them.
//
// Pure functions, thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "geometry.h"
#include "prefixd/cuda.h"
#include "quant/format.h"

namespace prefixd::cuda {

quant::TensorFormat FormatOf(const prefixd_tensor_format& format);

// Returns the geometry of K or V, or InvalidArgument if the format does not fit rows of `dim`, or
// the GPU has no code for it: block floats, and dims that are no multiple of 8 or above 256. Of
// keys that have the values in them also dims up to kMaxLatentDim.
enum class Side { kKey, kValue, kLatent };
absl::StatusOr<TensorGeometry> GeometryOf(const prefixd_tensor_format& format, uint32_t dim,
                                          Side side);

struct LayerDims {
  uint32_t kv_heads = 0, key_dim = 0, value_dim = 0;
  bool latent = false;  // the values are in the keys
};
// Returns whether a layer's values are in its keys; InvalidArgument if `values` is neither that nor
// PREFIXD_VALUES_STORED.
absl::StatusOr<bool> IsLatent(uint32_t values);
absl::StatusOr<std::vector<PairGeometry>> GeometryOf(const prefixd_format* formats, size_t count,
                                                     const LayerDims& dims);

// Returns where an engine keeps rows of `dim` elements of `kv_heads` heads. `tensor` may be null,
// which is refused.
absl::StatusOr<TensorPlace> PlaceOf(const prefixd_cuda_tensor* tensor, uint32_t kv_heads,
                                    uint32_t dim, const char* what);

// Refuses a table that does not have an entry for each of tokens [0, end) of `place`.
absl::Status CheckTable(const TensorPlace& place, const int32_t* table, uint32_t count,
                        uint64_t end);

}  // namespace prefixd::cuda
