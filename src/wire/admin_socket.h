// Where people reach a daemon: the socket of Admin beside that of the workers.
//
// Pure functions.
#pragma once
#include <string>

namespace prefixd::wire {

// "/run/prefixd/prefixd.sock" -> "/run/prefixd/prefixd.admin.sock".
std::string AdminSocketOf(const std::string& socket);

// The path of a unix socket's address ("unix:/a", "unix:///a"); "" of any other.
std::string SocketPathOf(const std::string& address);

}  // namespace prefixd::wire
