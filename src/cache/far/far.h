// What the parts of the far tier share: the store, its keys, and what was learned of it.
//
// The far tier is a store that several hosts share (remote/remote_store.h). It fails open: what it
// does not give in time is a miss. No call that a local hit makes waits for it.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "cache/context.h"
#include "cache/far/wishes.h"
#include "cache/tables/session.h"
#include "remote/names.h"

namespace prefixd::cache {

// A sequence's full blocks by name, from the first on.
using ChainNames = std::vector<remote::ChainName>;

// Numbers that are raised to clear: one of the tenant, one of each space. A name is made with both.
//
// Thread-safe.
class Generations {
 public:
  static constexpr int64_t kFreshUs = 30'000'000;

  // What an earlier daemon owed waits from the start.
  explicit Generations(Context* context);
  // Returns the space's generation: as it was read at most kFreshUs ago, else as the store says.
  // The store's error, if it does not.
  absl::StatusOr<uint64_t> Of(const block::SpaceId& space, base::Deadline deadline)
      PREFIXD_EXCLUDES(mutex_);
  // Raises the space's number; null: the tenant's. If the store does not take it now, Of answers
  // Unavailable for the spaces that it concerns until RaiseWaiting has, also in a later daemon's
  // life.
  absl::Status Raise(const block::SpaceId* space, base::Deadline deadline) PREFIXD_EXCLUDES(mutex_);
  // Raises what waits for it. Returns how many still wait.
  size_t RaiseWaiting(base::Deadline deadline) PREFIXD_EXCLUDES(mutex_);
  bool any_waiting() const PREFIXD_EXCLUDES(mutex_);
  uint64_t MemoryBytes() const PREFIXD_EXCLUDES(mutex_);  // estimated
  // How often this host cleared: what was found before is not used after.
  uint64_t raises() const { return raises_; }

 private:
  struct Known {
    uint64_t number = 0;
    int64_t read_us = 0;
  };
  // In these a space of all zeros is the tenant.
  absl::Status RaiseOne(const block::SpaceId& space, base::Deadline deadline)
      PREFIXD_EXCLUDES(mutex_);
  absl::StatusOr<uint64_t> Read(const block::SpaceId& space, base::Deadline deadline)
      PREFIXD_EXCLUDES(mutex_);
  // The highest number that this process has seen, 0 if none.
  uint64_t Seen(const block::SpaceId& space) const PREFIXD_EXCLUDES(mutex_);
  // Returns `number`, which the store just said; if it lost what was there, what is put back.
  // Others would find what was cleared, if it stayed below `least`.
  absl::StatusOr<uint64_t> PutBack(const block::SpaceId& space, uint64_t number, uint64_t least,
                                   base::Deadline deadline) PREFIXD_EXCLUDES(mutex_);
  std::string NameOf(const block::SpaceId& space) const;
  // Keeps on disk what waits now.
  absl::Status KeepWaiting() PREFIXD_EXCLUDES(keeping_mutex_) PREFIXD_EXCLUDES(mutex_);

  Context* const context_;
  Wishes wishes_;
  // Held while files are written; taken before mutex_.
  base::Mutex keeping_mutex_{"Far::keeping_mutex_"};
  mutable base::Mutex mutex_;
  absl::flat_hash_map<block::SpaceId, Known> known_ PREFIXD_GUARDED_BY(mutex_);
  std::set<block::SpaceId> waiting_ PREFIXD_GUARDED_BY(mutex_);  // to be raised
  std::atomic<uint64_t> raises_{0};
};

// Remembers names for a time: at most 65,536, and fewer beside a small RAM budget; the oldest go.
// It keeps 64 bits of each name's hash: of two names that share them one may be forgotten, or
// thought to be there, which costs a hit or a write.
//
// Thread-safe.
class RecentNames {
 public:
  RecentNames(const Context* context, int64_t lifetime_us);
  void Add(const std::string& name) PREFIXD_EXCLUDES(mutex_);
  void Forget(const std::string& name) PREFIXD_EXCLUDES(mutex_);
  bool Contains(const std::string& name) const PREFIXD_EXCLUDES(mutex_);
  uint64_t MemoryBytes() const PREFIXD_EXCLUDES(mutex_);  // estimated

 private:
  const Context* const context_;
  const int64_t lifetime_us_;
  const size_t most_;
  mutable base::Mutex mutex_;
  absl::flat_hash_map<uint64_t, int64_t> until_us_ PREFIXD_GUARDED_BY(mutex_);
  // When each was added, oldest first; a name that was added again is in it twice.
  std::deque<std::pair<int64_t, uint64_t>> order_ PREFIXD_GUARDED_BY(mutex_);
};

// Thread-safe.
class Far {
 public:
  explicit Far(Context* context);

  bool on() const { return options().store != nullptr; }
  const RemoteOptions& options() const { return context_->options.remote; }
  remote::RemoteStore& store() const { return *options().store; }
  // Whether other hosts may have blocks of the space: its identity must name the weights.
  bool Serves(const SpaceInfo& space) const;
  // Whether the store is given up for a moment: it did not answer.
  bool down() const { return context_->Now() < down_until_us_; }
  void SayDown();
  // A bundle was not there: it may be written again.
  void SayAbsent(const std::string& key);
  // A bundle was there and cannot be used: who has its block writes it anew.
  void SaySpoiled(const std::string& key);

  // What is remembered of the store, counted in the RAM budget.
  uint64_t MemoryBytes() const;

  // Adds names to those of the first full blocks until there are `blocks`.
  void ExtendNames(const SpaceInfo& space, uint64_t generation, const block::SequenceView& sequence,
                   uint32_t blocks, ChainNames* names) const;

  Generations generations;
  RecentNames absent;   // keys that were not there
  RecentNames present;  // keys that were, or that this host wrote
  RecentNames passed;   // keys that the write budget passed over
  RecentNames spoiled;  // keys whose bundles are to be written anew, though they are there

 private:
  Context* const context_;
  std::atomic<int64_t> down_until_us_{0};
};

// The tokens and content of one full block.
struct BlockSlice {
  BlockSlice(const block::SequenceView& sequence, uint32_t block, uint32_t block_tokens);
  block::SequenceView view() const { return {tokens, content}; }
  std::span<const block::Token> tokens;
  std::vector<block::ContentKey> content;
};

// The bundle's `formats` of pages that are all in one rung of their ladders, and of a snapshot.
std::string FormatsOf(uint32_t rung);
inline constexpr const char* kSnapshotFormats = "s";

}  // namespace prefixd::cache
