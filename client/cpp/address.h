// Where a daemon listens, as users write it: unix:///run/prefixd/prefixd.sock,
// 127.0.0.1:7777 or tls://host:7777.
//
// Pure functions but for the look at the socket's file; thread-safe.
#pragma once
#include <string>

#include "absl/status/status.h"

namespace prefixd::client {

// Returns the path of a unix socket: "/run/x.sock" for "unix:/run/x.sock" and
// "unix:///run/x.sock"; empty for other addresses.
std::string UnixPath(const std::string& address);

// Returns InvalidArgument, with what may have been meant, if nobody can listen there.
absl::Status CheckAddress(const std::string& address);

// Returns why nobody answers there: "no daemon at ADDRESS", or that this process may not open the
// socket, whose it is and what helps.
std::string WhyNobodyAnswers(const std::string& address);

}  // namespace prefixd::client
