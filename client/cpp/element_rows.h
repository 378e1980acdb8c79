// Elements of an engine's tensors into the units of a page and back: quantized and dequantized by
// prefixd's kernels.
//
// Pure functions, thread-safe.
#pragma once
#include <cstddef>

#include "absl/status/status.h"

#include "block/layer_group.h"
#include "packed_rows.h"
#include "prefixd/client.h"

namespace prefixd::client {

// InvalidArgument, in the name of `caller`, unless K and, if the group stores it, V are tensors
// that hold the group's rows.
absl::Status CheckTensors(const char* caller, const block::LayerGroup& group, const TensorView& key,
                          const TensorView& value);
absl::Status CheckTensors(const char* caller, const block::LayerGroup& group,
                          const MutableTensorView& key, const MutableTensorView& value);

// Quantizes `rows` into the page. Requires: CheckTensors() is OK, the slots are inside the page.
void QuantizeIntoPage(const PageRows& rows, const TensorView& key, const TensorView& value,
                      std::byte* page);
// The way back. The elements are those that quant/codec.h gives, rounded to the views' types.
// `caches`: as for CopyOutOfPage(), where the page holds just these elements.
void DequantizeOutOfPage(const PageRows& rows, const std::byte* page, Caches caches,
                         const MutableTensorView& key, const MutableTensorView& value);

}  // namespace prefixd::client
