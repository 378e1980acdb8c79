// Files and folders that must be this user's own: what is opened by a name that somebody else could
// have prepared is looked at first, and links are not followed.
//
// Thread-safe. Errors name the path, whose it is and what to do about it.
#pragma once
#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace prefixd::base {

// FailedPrecondition unless the open file or folder belongs to this user. `what` begins messages:
// "arena: /dev/shm/x".
absl::Status CheckOwner(int fd, const std::string& what);

// For root alone, whose rights make a trap of every path: FailedPrecondition when a folder or link
// on the way to `path` belongs to another user, who could put something else in its place. What
// does not exist yet is nobody's. `path` itself is looked at too when it is a link.
absl::Status CheckWay(const std::string& path, const std::string& what);

// The folder `path`, which may be a link of this user's or root's: a descriptor of it, which the
// caller owns, or -1 and errno where it cannot be opened. FailedPrecondition: the link or the
// folder is another user's.
absl::StatusOr<int> OpenOwnFolder(const std::string& path, const std::string& what);

enum class ReadableBy { kAnybody, kOwnerAlone };
// What is in a plain file of this user; at most `most_bytes` of it. nullopt: there is none.
// FailedPrecondition: a link, no plain file, another user's, or one that others than `readable_by`
// says may read or write. Unavailable: it cannot be read.
absl::StatusOr<std::optional<std::string>> ReadOwnFile(
    const std::string& path, size_t most_bytes, ReadableBy readable_by = ReadableBy::kAnybody);

// Mode 0600, in place of whatever was there, and on the disk before it returns. A crash leaves the
// old file or the new one. Unavailable: it cannot be written.
absl::Status WriteOwnFile(const std::string& path, const std::string& text);

}  // namespace prefixd::base
