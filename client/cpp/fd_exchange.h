// Fetches a session's descriptors from the socket beside the daemon's own.
#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "unique_fd.h"

namespace prefixd::client {

struct SessionFiles {
  UniqueFd arena;
  UniqueFd lock;
  UniqueFd staging;  // may be none
};

// Path of `file_name` beside the unix socket that `address` names ("unix:///run/x.sock",
// "unix:x.sock"). nullopt for other addresses and for a name that is none.
std::optional<std::string> PathBeside(const std::string& address, const std::string& file_name);

// One exchange: the key out, the key and the descriptors in. `use` maps and closes them: no fork()
// happens between their coming and its end. Unavailable when there is no answer within `patience`,
// FailedPrecondition for one that is not the session's; else what `use` says.
absl::Status ReceiveFiles(const std::string& socket, const std::string& key,
                          std::chrono::milliseconds patience,
                          const std::function<absl::Status(SessionFiles)>& use);

}  // namespace prefixd::client
