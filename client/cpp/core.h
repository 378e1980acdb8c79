// The state that a Client, its Spaces and its Sequences share.
//
// Thread-safe. Lives until the last of them is gone; Stop() ends its threads.
#pragma once
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/threads.h"
#include "connection.h"
#include "counts.h"
#include "fetched_pages.h"
#include "lease_events.h"
#include "not_shared.h"
#include "prefixd/client.h"
#include "release_sender.h"
#include "space_state.h"

namespace prefixd::client {

// A space that is open under an attachment.
struct OpenedUnder {
  std::shared_ptr<Attachment> attachment;
  OpenedSpace space;
};

class Core final : public SessionObserver {
 public:
  explicit Core(ClientOptions options);
  ~Core() override { Stop(); }

  const std::shared_ptr<Connection>& connection() { return connection_; }
  std::chrono::milliseconds connect_deadline() const { return options_.connect_deadline; }
  LeaseEvents& board() { return board_; }
  ReleaseSender& release_sender() { return *release_sender_; }
  NotShared& not_shared() { return not_shared_; }
  Counts& counts() { return counts_; }

  // Opens the space again in every new session, as long as somebody holds it.
  void Keep(const std::shared_ptr<SpaceState>& space) PREFIXD_EXCLUDES(mutex_);
  // Opens `space` in the current session, if it is not open yet.
  absl::StatusOr<OpenedUnder> Open(SpaceState& space, base::Deadline deadline);

  void StartLoad(const std::shared_ptr<FetchedPages>& load) PREFIXD_EXCLUDES(mutex_);

  // Runs `task`, which stores pages, on a thread. Returns false if no thread can be had: it will
  // not run.
  bool StartStore(std::function<void()> task) { return stores_.Post(std::move(task)); }

  // Waits a moment for what is on its way, then ends the session and the threads.
  void Stop() PREFIXD_EXCLUDES(mutex_);

 private:
  void Attached(const Attachment& attachment) override PREFIXD_EXCLUDES(mutex_);
  void TellDevicePins(const Attachment& attachment);
  void Event(const Session& session, const v1::SessionEvent& event) override;
  void Ended(const Session& session) override;

  const ClientOptions options_;
  LeaseEvents board_;
  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<ReleaseSender> release_sender_;
  NotShared not_shared_;
  base::Threads loads_, stores_;
  Counts counts_;

  base::Mutex mutex_;  // guards what follows
  std::vector<std::weak_ptr<SpaceState>> spaces_ PREFIXD_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<FetchedPages>> loading_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::client
