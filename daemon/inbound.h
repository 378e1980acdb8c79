// Bounds what workers have sent of messages that are not whole, and the calls that they began and
// gave up. gRPC 1.51 keeps whatever a peer
// begins to send, and cancels calls once its quota is exceeded: on 16 cores a crowd had sent a
// quarter of a gigabyte by then. So prefixd looks at what gRPC reads (it puts itself before
// recvmsg). When all connections together have more than they may, it cuts the one that has most,
// whose worker attaches anew. gRPC frees what a connection has when it closes the socket, which
// takes it a while: until then it counts, and new connections wait.
//
// gRPC lets go of a stream as soon as its peer resets it, and takes the next one, while prefixd
// still has the call: on 16 cores a peer that did nothing else had 3,000 calls, 110 MiB. So calls
// are counted until they are freed (InboundCall), and those that were given up count as streams.
//
// Thread-safe.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/peer.h"
#include "daemon/inbound_frames.h"

namespace prefixd::daemon {

class Inbound {
 public:
  // Calls `on_cut` on one of gRPC's threads, with whose connection was cut and why.
  Inbound(uint64_t most_bytes, std::function<void(const std::string&)> on_cut);
  ~Inbound();  // ends the watch of every connection
  Inbound(const Inbound&) = delete;
  Inbound& operator=(const Inbound&) = delete;

  // Waits until gRPC has freed most of what the connections had that were cut, at most until `most`
  // after the last cut: connections that wait in a row wait once. Call it before a new connection
  // is taken, as a peer that was cut connects again at once.
  void WaitForRoom(std::chrono::milliseconds most) const;
  // Watches a connected socket that gRPC is about to own and from which nothing was read yet.
  void Watch(int fd);

  struct All;
  class Connection;

 private:
  const std::shared_ptr<All> all_;
};

// A call, from when prefixd begins to handle it until it is freed: a member of what handles it.
class InboundCall {
 public:
  // `peer`: gRPC's name of the connection. A connection that is not watched counts nothing.
  explicit InboundCall(const std::string& peer);
  ~InboundCall();
  InboundCall(const InboundCall&) = delete;
  InboundCall& operator=(const InboundCall&) = delete;

 private:
  const std::shared_ptr<Inbound::Connection> connection_;
};

}  // namespace prefixd::daemon
