// Files and folders that must belong to this user. Somebody else could have prepared the name, so
// the owner is checked before use, and links are refused except by OpenOwnFolder.
//
// Thread-safe. Errors name the path, its owner and what to do about it.
#pragma once
#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace prefixd::base {

// Returns FailedPrecondition unless the open file or folder belongs to this user. `what` begins
// messages: "arena: /dev/shm/x".
absl::Status CheckOwner(int fd, const std::string& what);

// Returns FailedPrecondition if a folder or link on the way to `path` belongs to a user other than
// root, who could put something else in its place. Checks only if this process is root, whose
// rights make a trap of every path. Skips what does not exist. Checks `path` itself only if it is a
// link.
absl::Status CheckWay(const std::string& path, const std::string& what);

// Opens the folder `path`, which may be a link of this user or root. Returns a descriptor that the
// caller owns, or -1 with errno set if it cannot be opened. FailedPrecondition: the link or the
// folder belongs to another user.
absl::StatusOr<int> OpenOwnFolder(const std::string& path, const std::string& what);

enum class ReadableBy { kAnybody, kOwnerAlone };
// Returns at most the first `most_bytes` bytes of a plain file of this user, or nullopt if there is
// none. FailedPrecondition: it is a link, not a plain file, another user's, or kOwnerAlone is asked
// for and others may read or write it. Unavailable: it cannot be read.
absl::StatusOr<std::optional<std::string>> ReadOwnFile(
    const std::string& path, size_t most_bytes, ReadableBy readable_by = ReadableBy::kAnybody);

// Replaces the file, with mode 0600. It is on the disk before the call returns. A crash leaves the
// old file or the new one. Unavailable: it cannot be written.
absl::Status WriteOwnFile(const std::string& path, const std::string& text);

}  // namespace prefixd::base
