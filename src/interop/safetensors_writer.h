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

// Writes the tensors with larger elements first, so that each is aligned to its elements. The file
// appears whole or not at all: it is written beside `path` and renamed. InvalidArgument if a
// tensor's bytes do not match its shape; otherwise the system's error, naming the file.
absl::Status WriteSafetensors(const std::string& path, std::span<const Tensor> tensors,
                              const std::map<std::string, std::string>& metadata);

}  // namespace prefixd::interop
