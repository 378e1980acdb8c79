// What the codes of a format mean to fast decode. Internal to kernels/.
//
// Pure functions, thread-safe.
#pragma once
#include <cstdint>

#include "kernels/decode_job.h"
#include "quant/format.h"

namespace prefixd::kernels {

// Whether there is a fast way to multiply them. Requires: quant::Validate has accepted them.
bool HasFastDecode(const quant::KvFormat& format, uint32_t key_dim, uint32_t value_dim);

// `format` must outlive what is returned. Requires: HasFastDecode.
DecodeFormat DecodeFormatOf(const quant::KvFormat& format, uint32_t key_dim, uint32_t value_dim);

}  // namespace prefixd::kernels
