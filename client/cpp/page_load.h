// The loading of one lease: Fetch in the background, group by group, into memory that lives as long
// as this object. A page that turns out bad makes the whole load shorter, never wrong.
//
// Thread-safe; Run() once, on a background thread.
#pragma once
#include <grpcpp/client_context.h>

#include <deque>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "block/ids.h"
#include "connection.h"
#include "page_receiver.h"
#include "space_state.h"

namespace prefixd::client {

struct LoadPlan {
  Session session;
  block::LeaseId lease;
  uint32_t block_tokens = 0;
  uint32_t tokens = 0;
  std::vector<std::vector<uint32_t>> rungs;  // [group][block]
  base::Deadline asked;                      // when the lookup began
  base::Deadline deadline;
};

class PageLoad {
 public:
  PageLoad(std::shared_ptr<Connection> connection, std::shared_ptr<const SpaceState> space,
           LoadPlan plan);

  void Run() PREFIXD_EXCLUDES(mutex_);
  // Run() will not go on, waiters are let go: what is here by now is all there is.
  void Cancel() PREFIXD_EXCLUDES(mutex_);

  // Waits for the group. Returns usable_tokens().
  uint32_t Wait(uint32_t group) PREFIXD_EXCLUDES(mutex_);
  // Tokens that are here, or still expected, in every group. Only shrinks.
  uint32_t usable_tokens() const PREFIXD_EXCLUDES(mutex_);
  // Requires: Wait(group) has returned; first token of the block < usable_tokens().
  const LoadedPage& page(uint32_t group, uint32_t block) const {
    return receivers_[group].pages()[block];
  }
  const Session& session() const { return plan_.session; }
  block::LeaseId lease() const { return plan_.lease; }
  // From asking to the last byte; 0 until then, and for a load that fell short.
  std::chrono::microseconds duration() const PREFIXD_EXCLUDES(mutex_);

 private:
  // One Fetch of the groups that are not done. False: another would get no further.
  bool FetchOnce() PREFIXD_EXCLUDES(mutex_);
  // False: the stream is not worth reading on.
  bool OnChunk(const v1::FetchChunk& chunk) PREFIXD_EXCLUDES(mutex_);
  void CloseGroup(uint32_t group, uint32_t usable_tokens) PREFIXD_REQUIRES(mutex_);
  void CloseAll() PREFIXD_REQUIRES(mutex_);
  std::vector<uint32_t> OpenGroups() const PREFIXD_EXCLUDES(mutex_);

  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<const SpaceState> space_;
  const LoadPlan plan_;
  std::deque<PageReceiver> receivers_;  // Run()'s until the group is done, constant from then on

  mutable base::Mutex mutex_;  // guards what follows
  mutable base::CondVar changed_;
  std::vector<bool> done_ PREFIXD_GUARDED_BY(mutex_);
  size_t open_groups_ PREFIXD_GUARDED_BY(mutex_);
  uint32_t usable_tokens_ PREFIXD_GUARDED_BY(mutex_);
  bool closed_ PREFIXD_GUARDED_BY(mutex_) = false;  // nothing is taken in any more
  grpc::ClientContext* fetching_with_ PREFIXD_GUARDED_BY(mutex_) = nullptr;
  std::chrono::microseconds duration_ PREFIXD_GUARDED_BY(mutex_){0};
};

}  // namespace prefixd::client
