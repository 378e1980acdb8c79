// Remembers, in a file outside the SSD directory, which store the directory held. So the daemon
// tells a directory that is empty because its disk is not mounted from a new one, and does not fill
// what is below the mount point.
//
// The file holds the store's instance and the id of its filesystem, one on each line.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace prefixd::daemon {

// Returns why the SSD tier must stay off: the file `known` remembers a store, the directory has
// none, and it is on another filesystem than that store was. Empty if the tier may be opened:
// nothing is remembered (as with an empty `known`), the store is there, or the directory was
// emptied by hand.
absl::StatusOr<std::string> MissingStore(const std::string& known, const std::string& directory);

// Writes the file `known` if the directory's filesystem may go away without the file: if it is
// neither the root filesystem nor a tmpfs, which does not come back either. Otherwise removes the
// file. An empty `known` does nothing. Unavailable, naming the file, if it cannot be written.
absl::Status RememberStore(const std::string& known, const std::string& directory,
                           const std::string& instance);

}  // namespace prefixd::daemon
