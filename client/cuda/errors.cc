#include "errors.h"

#include <cstdio>

#include "absl/strings/str_cat.h"

namespace prefixd::cuda {
namespace {

// No destructor: a thread may end after everything else.
thread_local char last_error[512] = "";
thread_local prefixd_status last_status = PREFIXD_OK;

prefixd_status CodeOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return PREFIXD_OK;
    case absl::StatusCode::kInvalidArgument:
      return PREFIXD_INVALID_ARGUMENT;
    case absl::StatusCode::kUnavailable:
      return PREFIXD_UNAVAILABLE;
    case absl::StatusCode::kResourceExhausted:
      return PREFIXD_EXHAUSTED;
    case absl::StatusCode::kFailedPrecondition:
      return PREFIXD_FAILED_PRECONDITION;
    default:
      return PREFIXD_INTERNAL;
  }
}

absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorStubLibrary:
    case cudaErrorNoKernelImageForDevice:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

void SetError(prefixd_status status, const char* sentence) noexcept {
  last_status = status;
  std::snprintf(last_error, sizeof(last_error), "%s", sentence);
}

const char* LastError() noexcept { return last_error; }
prefixd_status LastStatus() noexcept { return last_status; }

prefixd_status Tell(const absl::Status& status) noexcept {
  last_status = CodeOf(status.code());
  const absl::string_view message = status.message();
  std::snprintf(last_error, sizeof(last_error), "%.*s", static_cast<int>(message.size()),
                message.data());
  return last_status;
}

absl::Status FromCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  return absl::Status(CodeOf(error), absl::StrCat(what, ": ", cudaGetErrorString(error)));
}

bool CheckSize(const void* from, size_t size, size_t known) noexcept {
  const char* const why = base::WhyNotReadable(from, size, known);
  if (why == nullptr) return true;
  char sentence[128];
  std::snprintf(sentence, sizeof(sentence), "cuda: %s", why);
  SetError(PREFIXD_INVALID_ARGUMENT, sentence);
  return false;
}

}  // namespace prefixd::cuda
