// Fetches a session's descriptors from the socket beside the daemon's own.
#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "base/descriptor.h"

namespace prefixd::client {

struct SessionFiles {
  base::Descriptor arena;
  base::Descriptor lock;
  base::Descriptor staging;     // none if the daemon granted no staging memory
  base::Descriptor connection;  // over which they came
};

// Returns the path of `file_name` beside the unix socket that `address` names
// ("unix:///run/x.sock", "unix:x.sock"). nullopt for other addresses, and if `file_name` is empty
// or has a slash.
std::optional<std::string> PathBeside(const std::string& address, const std::string& file_name);

// Sends the key, receives the key and the descriptors, and calls `use`, which maps and closes them.
// No fork() happens from their arrival until `use` returns. Unavailable if no answer comes within
// `patience`, FailedPrecondition if it is not the session's; else returns the status of `use`.
absl::Status ReceiveFiles(const std::string& socket, const std::string& key,
                          std::chrono::milliseconds patience,
                          const std::function<absl::Status(SessionFiles)>& use);

}  // namespace prefixd::client
