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

// From the kernel. Unavailable: it gives none.
absl::StatusOr<Secret> RandomSecret();

// Takes as long whatever they hold.
bool Equal(const Secret& a, const Secret& b);

// nullopt: there is no such file. FailedPrecondition, with the path: a link, no plain file, another
// user's, or one that others may read or write. DataLoss: it is not such a file, whole and
// unchanged.
absl::StatusOr<std::optional<Secret>> ReadSecret(const std::string& path);

// Mode 0600, in place of whatever was there, and on the disk before it returns. A crash leaves the
// old file or the new one.
absl::Status WriteSecret(const std::string& path, const Secret& secret);

}  // namespace prefixd::base
