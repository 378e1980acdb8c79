// Remembers, outside the SSD directory, which store it held: a directory that is empty because its
// disk is not mounted is told from a new one, and what is below the mount point is not filled.
//
// The file holds the store's instance and the id of its filesystem, a line.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace prefixd::daemon {

// Says why the SSD tier must stay off: `known` remembers a store, the directory has none, and it is
// on another filesystem than that store was. Empty: go on (nothing is remembered, the store is
// there, or the directory was emptied by hand). `known` empty: nothing is remembered.
absl::StatusOr<std::string> MissingStore(const std::string& known, const std::string& directory);

// Where the directory's filesystem may go away without the file: not on the root filesystem, nor on
// a tmpfs, which does not come back either. Otherwise removes what `known` remembered. Unavailable
// naming the file when it cannot be written.
absl::Status RememberStore(const std::string& known, const std::string& directory,
                           const std::string& instance);

}  // namespace prefixd::daemon
