// prefixctl token: a new token, and its entry of the access file. No prefixd is asked.
//
// Thread-safe.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "base/secret_file.h"

namespace prefixd::cli {

// What the access file says of the token's holder (daemon/README.md, "Access").
struct TokenRequest {
  std::string name, role, tenant;
  std::string expires{};  // a time like 2027-01-01T00:00:00Z; empty = no end
  uint64_t sessions = 0, requests_per_s = 0, lease_bytes = 0, bytes_in_flight = 0;  // 0 = no limit
  std::string file{};  // where the token goes, which must not exist; empty = to standard output
};

// Returns what the access file would refuse: InvalidArgument names the flag.
absl::Status CheckToken(const TokenRequest& request);

// Returns the entry of the access file's "tokens", one line of JSON. It has the secret's SHA-256.
std::string AccessEntry(const TokenRequest& request, const base::Secret& secret);

// Makes a token and returns what to print: the entry and, where no file is named, the token itself.
// FailedPrecondition: the file exists. Otherwise as base::WriteSecret.
absl::StatusOr<std::string> MakeToken(const TokenRequest& request, bool json);

}  // namespace prefixd::cli
