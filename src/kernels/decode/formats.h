// What the codes of a format mean to fast decode. Internal to kernels/.
//
// Pure functions, thread-safe.
#pragma once
#include <cstdint>

#include "kernels/decode/job.h"
#include "quant/format.h"

namespace prefixd::kernels {

// Returns whether fast decode takes `format`. Requires: quant::Validate has accepted it.
bool HasFastDecode(const quant::KvFormat& format, uint32_t key_dim, uint32_t value_dim);

// Describes `format`, which must outlive the result. Requires: HasFastDecode.
DecodeFormat DecodeFormatOf(const quant::KvFormat& format, uint32_t key_dim, uint32_t value_dim);

}  // namespace prefixd::kernels
