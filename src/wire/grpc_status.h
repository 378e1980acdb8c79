// Statuses of gRPC as those of Abseil. The codes are the same numbers.
//
// Pure functions.
#pragma once
#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace prefixd::wire {

inline absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}
// Begins the message with the call's name.
inline absl::Status FromGrpc(const char* call, const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat(call, ": ", status.error_message()));
}

}  // namespace prefixd::wire
