// Writes .safetensors files.
//
// Thread-safe.
#pragma once
#include <map>
#include <span>
#include <string>

#include "absl/status/status.h"

#include "interop/safetensors.h"

namespace prefixd::interop {

// Tensors of larger elements stand first, so that each is aligned to its elements. The file appears
// whole or not at all: it is written beside `path` and renamed. InvalidArgument for a tensor whose
// bytes are not those of its shape; else what the system said, naming the file.
absl::Status WriteSafetensors(const std::string& path, std::span<const Tensor> tensors,
                              const std::map<std::string, std::string>& metadata);

}  // namespace prefixd::interop
