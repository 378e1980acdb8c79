// Refuses calls of Attend that cannot be right. Internal to kernels/.
//
// Pure function, thread-safe.
#pragma once
#include <span>

#include "absl/status/statusor.h"

#include "kernels/attention.h"

namespace prefixd::kernels {

// Returns `shape` with its strides filled in, or the InvalidArgument that Attend returns.
absl::StatusOr<AttentionShape> CheckAttention(quant::BlockTable table,
                                              std::span<const quant::KvFormat> formats,
                                              const float* q, const float* out,
                                              AttentionShape shape);

}  // namespace prefixd::kernels
