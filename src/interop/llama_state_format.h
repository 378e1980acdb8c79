#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "quant/format.h"

namespace prefixd::interop::llama {

// What reading and writing a saved state have in common. Source: llama.cpp's llama-context.cpp,
// llama-kv-cache.cpp and tools/server/server-context.cpp.
inline constexpr uint32_t kFileMagic = 0x67677371, kMemoryMagic = 0xaf143cd8;
// The first version that says whether K and V are rotated, and what llama.cpp rotates: quantized
// rows of a multiple of so many elements.
inline constexpr uint32_t kVersionWithRotation = 4, kRotatedDims = 64;
inline constexpr uint32_t kCheckpointsMagic = 0x504b4353, kCheckpointsVersion = 1;
// A packed list of tokens: kPackedMark, kPackedVersion, count, tokens, count of images.
inline constexpr int32_t kPackedMark = -1, kPackedVersion = 1;

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("llama state: ", parts...));
}

// The format of ggml's type `number`. INVALID_ARGUMENT names the accepted ones.
absl::StatusOr<quant::TensorFormat> FormatOf(int32_t number);

// ggml's number of the type, or -1 where it has none.
int32_t NumberOf(const quant::TensorFormat& format);

}  // namespace prefixd::interop::llama
