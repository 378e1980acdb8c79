// A tmpfs with huge pages, as deploy/run-prefixd_arena.mount makes it for a daemon.
#pragma once
#include <string>

#include "absl/status/statusor.h"

namespace prefixd::bench {

// The folder it is mounted on, in a mount namespace of the calling thread and of threads and
// processes that it starts from then on: it ends with them. Once a process; later calls return the
// same. PermissionDenied for who may not mount.
absl::StatusOr<std::string> MountHugeTmpfs();

}  // namespace prefixd::bench
