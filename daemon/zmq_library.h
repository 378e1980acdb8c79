// ZeroMQ, loaded when it is asked for: prefixd runs without it, and so does the wheel's, which
// links what it needs statically.
//
// Thread-safe; a socket belongs to one thread at a time.
#pragma once
#include <zmq.h>

#include <string>

#include "absl/status/statusor.h"

namespace prefixd::daemon {

// The functions of libzmq 4, by their names there.
struct ZmqLibrary {
  decltype(&::zmq_ctx_new) ctx_new;
  decltype(&::zmq_ctx_term) ctx_term;
  decltype(&::zmq_socket) socket;
  decltype(&::zmq_close) close;
  decltype(&::zmq_setsockopt) setsockopt;
  decltype(&::zmq_getsockopt) getsockopt;
  decltype(&::zmq_bind) bind;
  decltype(&::zmq_connect) connect;
  decltype(&::zmq_send) send;
  decltype(&::zmq_recv) recv;
  decltype(&::zmq_poll) poll;
  decltype(&::zmq_errno) last_error;
  decltype(&::zmq_strerror) strerror;

  // Loads libzmq.so.5 once for the process. FailedPrecondition if this host has none.
  static absl::StatusOr<const ZmqLibrary*> Load();
};

}  // namespace prefixd::daemon
