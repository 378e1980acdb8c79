// Small files that settings name: certificates, the access file.
#pragma once
#include <string>

#include "absl/status/statusor.h"

namespace prefixd::daemon {

// Returns what is in the file. FailedPrecondition if it cannot be read or is empty: "PATH cannot be
// read by user 995: Permission denied".
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

}  // namespace prefixd::daemon
