// The socket of Admin, where people reach a daemon, beside that of the workers.
//
// Pure functions.
#pragma once
#include <string>

namespace prefixd::wire {

// "/run/prefixd/prefixd.sock" -> "/run/prefixd/prefixd.admin.sock".
std::string AdminSocketOf(const std::string& socket);

// Returns the path in a unix socket's address ("unix:/a", "unix:///a"); "" for any other address.
std::string SocketPathOf(const std::string& address);

}  // namespace prefixd::wire
