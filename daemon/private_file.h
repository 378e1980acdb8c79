// Files of settings that hold something secret.
//
// Thread-safe.
#pragma once
#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace prefixd::daemon {

// Returns at most the first `most_bytes` bytes of the file that `setting` names. FailedPrecondition
// says which file it is: there is none, it is another user's, or others may read or write it.
absl::StatusOr<std::string> ReadPrivateFile(const char* setting, const std::string& path,
                                            size_t most_bytes);

}  // namespace prefixd::daemon
