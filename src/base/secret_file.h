// A file with 32 secret bytes that nobody but its owner reads.
//
// Layout: "prefixd secret 1", a space, 64 hex digits, a space, 16 hex digits (XXH3-64 of the
// secret's bytes), a newline.
#pragma once
#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace prefixd::base {

using Secret = std::array<std::byte, 32>;

// Takes the bytes from the kernel. Unavailable: the kernel gives none.
absl::StatusOr<Secret> RandomSecret();

// Takes a time that does not depend on the bytes.
bool Equal(const Secret& a, const Secret& b);

// Returns what stands in the file of this secret.
std::string SecretText(const Secret& secret);

// Returns nullopt if there is no such file. FailedPrecondition names the path: it is a link, not a
// plain file, another user's, or others may read or write it. DataLoss: the contents are not a
// whole and unchanged secret.
absl::StatusOr<std::optional<Secret>> ReadSecret(const std::string& path);

// Replaces the file, with mode 0600. It is on the disk before the call returns. A crash leaves the
// old file or the new one.
absl::Status WriteSecret(const std::string& path, const Secret& secret);

}  // namespace prefixd::base
