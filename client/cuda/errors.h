// Errors of the C functions: a sentence and a code for each thread, and how a CUDA error becomes a
// status.
//
// Thread-safe: everything here is the calling thread's own.
#pragma once
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>

#include "absl/status/status.h"

#include "base/sized_struct.h"
#include "prefixd/cuda.h"

namespace prefixd::cuda {

// Sets this thread's last error: the sentence, cut to its buffer, and the code.
void SetError(prefixd_status status, const char* sentence) noexcept;
const char* LastError() noexcept;
prefixd_status LastStatus() noexcept;
// Sets the last error to `status` and returns its code.
prefixd_status Tell(const absl::Status& status) noexcept;

// Returns OK, or what CUDA says of `what`: "load: cudaMemcpyAsync: out of memory". Clears CUDA's
// last error of this thread.
absl::Status FromCuda(cudaError_t error, const char* what);

// Returns true if the struct may be read (base::WhyNotReadable). Otherwise sets the last error.
bool CheckSize(const void* from, size_t size, size_t known) noexcept;

// Copies the members of `from` that caller and library both know; the others get their defaults.
// Returns false as CheckSize().
template <typename Struct>
bool Take(const Struct* from, Struct* to) noexcept {
  const bool readable = CheckSize(from, from == nullptr ? 0 : from->size, sizeof(Struct));
  base::CopyKnown(readable ? from : nullptr, to);
  return readable;
}
using base::Give;

// Copies text into a member of a struct, cut to fit.
template <size_t kBytes>
void CopyText(std::string_view from, char (&to)[kBytes]) noexcept {
  const size_t bytes = std::min(from.size(), kBytes - 1);
  std::memcpy(to, from.data(), bytes);
  to[bytes] = '\0';
}

// Clears the last error and calls `call`. If that throws, sets the last error and returns
// `otherwise`.
template <typename Answer, typename Call>
Answer Guarded(Answer otherwise, Call call) noexcept {
  SetError(PREFIXD_OK, "");
  try {
    return call();
  } catch (const std::bad_alloc&) {
    SetError(PREFIXD_EXHAUSTED, "cuda: out of memory");
  } catch (const std::exception& error) {
    SetError(PREFIXD_INTERNAL, error.what());
  } catch (...) {
    SetError(PREFIXD_INTERNAL, "cuda: unknown exception");
  }
  return otherwise;
}

}  // namespace prefixd::cuda
