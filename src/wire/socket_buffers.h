// The send buffers of gRPC's unix sockets, which gRPC gives no way to set.
#pragma once
#include <string_view>

namespace prefixd::wire {

// Bytes that a socket takes before its peer has read them; the kernel adds as much for its own
// bookkeeping. This is twice what a socket has by itself, so the two ends of a stream of pages wait
// for each other half as often. More brings a tenth and makes calls beside the stream wait for the
// cores; a Linux that is not tuned would not give it either (net.core.wmem_max).
inline constexpr int kSocketSendBytes = 212'992;

// Returns the path in a gRPC address: "/run/x.sock" for "unix:/run/x.sock" and
// "unix:///run/x.sock"; empty for others.
std::string_view UnixPath(std::string_view address);

// Enlarges the send buffer of every stream socket of this process that is connected to `address`,
// or was accepted there. Returns how many grew; 0 for addresses other than unix sockets. Costs two
// system calls a file descriptor. Thread-safe.
int EnlargeSendBuffers(std::string_view address);

// Closes this process's descriptors of sockets that are connected to `address`, whoever else has
// them: for a child of fork() that must not keep its parent's. Returns how many it closed.
int CloseConnections(std::string_view address);

}  // namespace prefixd::wire
