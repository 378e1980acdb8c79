// What a Client, its Spaces and its Sequences share.
//
// Thread-safe. Lives until the last of them is gone; Stop() ends its threads.
#pragma once
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "connection.h"
#include "page_load.h"
#include "prefixd/client.h"
#include "space_state.h"
#include "task_pool.h"

namespace prefixd::client {

class Core {
 public:
  explicit Core(ClientOptions options);
  ~Core() { Stop(); }

  const std::shared_ptr<Connection>& connection() { return connection_; }
  std::chrono::milliseconds connect_deadline() const { return options_.connect_deadline; }

  // The space is opened again with every new session, as long as somebody holds it.
  void Keep(const std::shared_ptr<SpaceState>& space) PREFIXD_EXCLUDES(mutex_);
  // The handle of `space` under the present session.
  absl::StatusOr<OpenedSpace> Open(SpaceState& space, base::Deadline deadline);

  void StartLoad(const std::shared_ptr<PageLoad>& load) PREFIXD_EXCLUDES(mutex_);
  // In the background; dropped when the session is no more.
  void Release(const Session& session, v1::Released released);
  void Abandon(const Session& session, block::ReservationId reservation);

  // Waits a moment for what is on its way, then ends the session.
  void Stop() PREFIXD_EXCLUDES(mutex_);

 private:
  void OpenAll(const Session& session) PREFIXD_EXCLUDES(mutex_);

  const ClientOptions options_;
  const std::shared_ptr<Connection> connection_;
  TaskPool loads_;
  TaskPool farewells_;

  base::Mutex mutex_;  // guards what follows
  std::vector<std::weak_ptr<SpaceState>> spaces_ PREFIXD_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<PageLoad>> loading_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::client
