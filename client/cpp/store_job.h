// One Commit, once it is known what to store: opens the space and publishes. It has its own copies
// of the tokens and handles on the pages, so it may run on another thread while the engine appends
// to the sequence, as long as nobody writes into the pages that are stored.
//
// The thread that has the sequence makes it and takes its result. Run() is called once, on any
// thread.
#pragma once
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"

#include "base/mutex.h"
#include "block/tokens.h"
#include "core.h"
#include "own_pages.h"
#include "publish.h"
#include "sequence_pages.h"
#include "space_state.h"

namespace prefixd::client {

// The own pages of a sequence as they were when Take() ran.
class PageSnapshot final : public OwnPages {
 public:
  // Takes the pages of the blocks that hold tokens [0, tokens). With copy_tail it copies the block
  // that `tokens` ends in, which may grow meanwhile. ResourceExhausted if there is no memory for
  // that.
  static absl::StatusOr<PageSnapshot> Take(const SequencePages& pages, const SpaceState& space,
                                           uint32_t tokens, bool copy_tail);
  uint32_t block_tokens() const override { return block_tokens_; }
  bool IsOwn(uint32_t group, uint32_t block) const override { return bool(Find(group, block)); }
  Page own_page(uint32_t group, uint32_t block) const override;
  uint64_t rungs_used(uint32_t group) const override { return rungs_used_[group]; }
  std::vector<State> states(uint32_t begin, uint32_t end) const override;

 private:
  const PageMemory& Find(uint32_t group, uint32_t block) const;

  uint32_t block_tokens_ = 0;
  std::vector<std::vector<Page>> pages_;  // [group][block]
  std::vector<uint64_t> rungs_used_;
  std::vector<State> states_;  // ascending
};

struct StoreJob {
  std::shared_ptr<Core> core;
  std::shared_ptr<SpaceState> space;
  std::vector<uint32_t> tokens;  // exactly those to store
  std::vector<block::ContentKey> content;
  PageSnapshot pages;
  uint32_t committed_tokens = 0;  // tokens before these are done
  bool sequence_end = false;
  std::vector<uint32_t> ends;  // of turns, among the tokens
  Durability durability = Durability::kRam;
  base::Deadline deadline{};
  std::optional<Announced> announced{};  // in and out, as in Publish

  void Run();

  // The result. `opened` is empty if there is no daemon, or none that opens the space.
  absl::Status status = absl::UnavailableError("commit: the client was ended");
  std::optional<OpenedUnder> opened{};
  Published published{};
};

// Runs a StoreJob on one of the core's threads.
class BackgroundStore {
 public:
  // Returns null if no thread can be had; `job` is then as it was.
  static std::unique_ptr<BackgroundStore> Start(const std::shared_ptr<StoreJob>& job);
  bool done() const;
  // Waits for the job. Also returns if the client ended before the job began.
  StoreJob& Wait();
  const StoreJob& job() const { return *job_; }

 private:
  explicit BackgroundStore(std::shared_ptr<StoreJob> job) : job_(std::move(job)) {}
  const std::shared_ptr<StoreJob> job_;
  std::future<void> ended_;
};

}  // namespace prefixd::client
