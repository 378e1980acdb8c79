// Tells the daemon which leases are given back and which reservations are given up. The next lookup
// carries releases along; what still waits after a moment is sent in calls of its own.
//
// Thread-safe. Drops what waits when the session ends: that end has told the daemon.
#pragma once
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "block/ids.h"
#include "connection.h"

namespace prefixd::client {

class ReleaseSender {
 public:
  explicit ReleaseSender(std::shared_ptr<Connection> connection)
      : connection_(std::move(connection)) {}
  ~ReleaseSender() { Stop(); }

  void Release(const Session& session, v1::Released released) PREFIXD_EXCLUDES(mutex_);
  void Abandon(const Session& session, block::ReservationId reservation) PREFIXD_EXCLUDES(mutex_);
  // Releases again what a call that broke off may have carried, in a call of its own.
  void ReleaseAgain(const Session& session, v1::Released released) PREFIXD_EXCLUDES(mutex_);
  // Takes out releases of `session` that wait, at most `most`, for a call that is about to be made.
  std::vector<v1::Released> Take(const Session& session, size_t most) PREFIXD_EXCLUDES(mutex_);

  // Sends at once what waits. Returns false if not all of it had left at the deadline.
  bool Drain(base::Deadline deadline) PREFIXD_EXCLUDES(mutex_);
  // Drops what waits and ends the thread.
  void Stop() PREFIXD_EXCLUDES(mutex_);

 private:
  struct Waiting {
    Session session;
    std::vector<v1::Released> releases;
    std::vector<v1::Released> again;
    std::vector<block::ReservationId> abandoned;
    bool empty() const { return releases.empty() && again.empty() && abandoned.empty(); }
  };
  // Returns the list of `session`; drops what waits for an earlier one. Starts the thread.
  Waiting& ListOf(const Session& session) PREFIXD_REQUIRES(mutex_);
  void WakeIfAsleep() PREFIXD_REQUIRES(mutex_);
  void Run() PREFIXD_EXCLUDES(mutex_);
  void Send(const Waiting& waiting);

  const std::shared_ptr<Connection> connection_;
  base::Mutex mutex_;  // guards what follows
  base::CondVar changed_;
  Waiting waiting_ PREFIXD_GUARDED_BY(mutex_);
  base::Deadline due_ PREFIXD_GUARDED_BY(mutex_);  // when what waits longest is sent
  bool sending_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool asleep_ PREFIXD_GUARDED_BY(mutex_) = false;  // the thread looks at nothing until it is woken
  bool draining_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool stopped_ PREFIXD_GUARDED_BY(mutex_) = false;
  std::thread thread_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::client
