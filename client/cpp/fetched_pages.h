// The pages of a lease, copied into this process: Fetch brings them in the background, group by
// group, into memory that lives as long as this object.
//
// Thread-safe. Call Run() once, on a background thread.
#pragma once
#include <grpcpp/client_context.h>

#include <deque>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "cached_pages.h"
#include "connection.h"
#include "page_receiver.h"
#include "space_state.h"

namespace prefixd::client {

class FetchedPages final : public CachedPages {
 public:
  // `pages`: for each group, the pages that the lease holds, in position order.
  FetchedPages(std::shared_ptr<Connection> connection, std::shared_ptr<const SpaceState> space,
               const LoadPlan& plan, std::vector<std::vector<ExpectedPage>> pages);

  void Run() PREFIXD_EXCLUDES(mutex_);

  uint32_t Wait(uint32_t group, base::Deadline until) override PREFIXD_EXCLUDES(mutex_);
  uint32_t usable_tokens() const override PREFIXD_EXCLUDES(mutex_);
  CachedPage page(uint32_t group, uint32_t block) const override;
  void Cancel() override PREFIXD_EXCLUDES(mutex_);  // ends Run() too
  std::chrono::microseconds duration() const override PREFIXD_EXCLUDES(mutex_);

 private:
  // Makes one Fetch of the groups that are not done. Returns false if another would get no further.
  bool FetchOnce() PREFIXD_EXCLUDES(mutex_);
  // Returns false if the rest of the stream is of no use.
  bool OnChunk(const FetchedChunk& chunk) PREFIXD_EXCLUDES(mutex_);
  void Close(uint32_t group, uint32_t usable_tokens) PREFIXD_REQUIRES(mutex_);
  std::vector<uint32_t> OpenGroups() const PREFIXD_EXCLUDES(mutex_);

  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<const SpaceState> space_;
  const LoadPlan plan_;
  std::deque<PageReceiver> receivers_;  // for Run() alone until the group is done, then constant

  mutable base::Mutex mutex_;  // guards what follows
  mutable base::CondVar changed_;
  LoadProgress progress_ PREFIXD_GUARDED_BY(mutex_);
  grpc::ClientContext* fetching_with_ PREFIXD_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace prefixd::client
