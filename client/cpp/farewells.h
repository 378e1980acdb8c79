// What the daemon is told when somebody lets go: leases given back, reservations given up. It rides
// on the next call, or leaves by itself after a moment.
//
// Thread-safe. Dropped when the session is no more: its end has told the daemon.
#pragma once
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "block/ids.h"
#include "connection.h"

namespace prefixd::client {

class Farewells {
 public:
  explicit Farewells(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
  ~Farewells() { Stop(); }

  void Release(const Session& session, v1::Released released) PREFIXD_EXCLUDES(mutex_);
  void Abandon(const Session& session, block::ReservationId reservation) PREFIXD_EXCLUDES(mutex_);
  // Of a call that may have carried it and broke off: goes alone.
  void ReleaseAgain(const Session& session, v1::Released released) PREFIXD_EXCLUDES(mutex_);
  // Releases of `session` that wait, for a call that is about to be made; at most `most`.
  std::vector<v1::Released> Take(const Session& session, size_t most) PREFIXD_EXCLUDES(mutex_);

  // Sends what waits, now. False when not all of it had left at the deadline.
  bool Drain(base::Deadline deadline) PREFIXD_EXCLUDES(mutex_);
  // Drops what waits.
  void Stop() PREFIXD_EXCLUDES(mutex_);

 private:
  struct Waiting {
    Session session;
    std::vector<v1::Released> releases;
    std::vector<v1::Released> again;
    std::vector<block::ReservationId> abandoned;
    bool empty() const { return releases.empty() && again.empty() && abandoned.empty(); }
  };
  // The list of `session`: what waits for an earlier one is dropped. Starts the thread.
  Waiting& ListOf(const Session& session) PREFIXD_REQUIRES(mutex_);
  void Run() PREFIXD_EXCLUDES(mutex_);
  void Send(const Waiting& waiting);

  const std::shared_ptr<Connection> connection_;
  base::Mutex mutex_;  // guards what follows
  base::CondVar changed_;
  Waiting waiting_ PREFIXD_GUARDED_BY(mutex_);
  base::Deadline due_ PREFIXD_GUARDED_BY(mutex_);  // of what waits longest
  bool sending_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool draining_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool stopped_ PREFIXD_GUARDED_BY(mutex_) = false;
  std::thread thread_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::client
