// What workers have sent of messages that are not whole, bounded. gRPC 1.51 keeps whatever a peer
// begins to send, and cancels calls once its quota is exceeded: on 16 cores a crowd had sent a
// quarter of a gigabyte by then. So prefixd looks at what gRPC reads (it puts itself before
// recvmsg), and when all connections together have more than they may, the one that has most is
// cut: its worker attaches anew.
//
// Thread-safe.
#pragma once
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
  // `on_cut`: told whose connection was cut and why, on one of gRPC's threads.
  Inbound(uint64_t most_bytes, std::function<void(const std::string&)> on_cut);
  ~Inbound();  // watches nothing any more
  Inbound(const Inbound&) = delete;
  Inbound& operator=(const Inbound&) = delete;

  // A connected socket that gRPC is about to own, and of which nothing was read yet.
  void Watch(int fd);

  struct All;
  class Connection;

 private:
  const std::shared_ptr<All> all_;
};

}  // namespace prefixd::daemon
