// The connections of this process to a unix socket. gRPC keeps its descriptors to itself, so they
// are found by their peer's path: two system calls for each descriptor of the process.
//
// Thread-safe, and usable in a child of fork().
#pragma once
#include <string>
#include <vector>

namespace prefixd::client {

// Returns descriptors that are connected to `path`. None without /proc.
std::vector<int> ConnectionsTo(const std::string& path);

// Doubles what each connection to `address` ("unix:///run/x.sock") takes before the daemon has read
// it, so that the two ends of a Put wait for each other half as often. Does nothing for addresses
// other than unix sockets.
void EnlargeSendBuffers(const std::string& address);

}  // namespace prefixd::client
