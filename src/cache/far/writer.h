// Writes what workers commit to the store that hosts share, behind their backs, and which spaces
// they opened.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cache/context.h"
#include "cache/far/far.h"
#include "cache/far/space_board.h"
#include "cache/patience.h"
#include "cache/write_budget.h"
#include "remote/bundle.h"

namespace prefixd::cache {

// A sequence that a worker stored: its full blocks may be written, from the first on.
struct Offer {
  SpacePtr space;
  std::vector<block::Token> tokens;
  std::vector<block::ContentKey> content;
};

// Thread-safe. One thread Run()s it.
//
// It writes the blocks of a sequence parents first, and the first one that is not there and cannot
// be written ends it: a block without its parents is never found. A block that is there already is
// marked as used instead.
class Writer {
 public:
  static constexpr size_t kMostOffers = 256;
  // Offered sequences take at most the RAM budget divided by this; a single one may take more.
  static constexpr uint64_t kPartOfRam = 256;
  static constexpr int64_t kHitUs = 250'000;  // one hit in this time is marked as used

  Writer(Context* context, Far* far, SpaceBoard* board);

  bool Wants(const SpaceInfo& space) const { return far_->Serves(space); }
  // Never waits. If too many wait, the oldest is passed over.
  void Take(Offer offer) PREFIXD_EXCLUDES(mutex_);
  // Returns true a few times a second: the caller then passes its hit to TakeHit, which is enough
  // to keep what is hot. Otherwise it reads one word.
  bool WantsHit();
  // The writer marks the hit's blocks as used in the store, each at most once an hour, when nothing
  // waits to be written. Never waits; a hit replaces one that still waits.
  void TakeHit(Offer hit) PREFIXD_EXCLUDES(mutex_);
  bool Step() PREFIXD_EXCLUDES(mutex_);     // false: there is nothing to do
  bool StepHit() PREFIXD_EXCLUDES(mutex_);  // the same
  void Run() PREFIXD_EXCLUDES(mutex_);      // until Stop
  void Stop() PREFIXD_EXCLUDES(mutex_);
  uint64_t MemoryBytes() const PREFIXD_EXCLUDES(mutex_);  // of what was offered, and of the board
  // Waits until nothing is on its way. False: patience is over.
  bool WaitIdle(const Patience& patience) PREFIXD_EXCLUDES(mutex_);

 private:
  // One sequence on its way out.
  struct Chain {
    const Offer& offer;
    uint64_t generation = 0;
    ChainNames names;
    std::vector<std::string> keys;  // in the format that most workers store
    block::SequenceView view() const { return {offer.tokens, offer.content}; }
  };
  // Pages of one block, held by a lease while they are read.
  class HeldBlock;

  // Learns which blocks are there. False: the store does not say.
  bool LearnPresent(const std::vector<std::string>& keys);
  // Nullopt: the store does not say under which names.
  std::optional<Chain> ChainOf(const Offer& offer, base::Deadline deadline) const;
  void WriteChain(const Offer& offer);
  void TouchHit(const Offer& hit);
  static remote::BundleRecord RecordOf(const Chain& chain, uint32_t block);
  // Seals the pages and stores them with the record, to which it adds them. False: they are not
  // there.
  bool Send(const std::string& key, std::span<const index::PageInfo> pages,
            remote::BundleRecord* record);
  void TouchAll(std::span<const std::string> keys);
  bool WriteBlock(const Chain& chain, uint32_t block);  // false: the chain ends here
  // Writes one bundle unless it is there. False: it is not.
  bool WriteBundle(const Chain& chain, uint32_t block, const HeldBlock& held, bool snapshot);
  bool MayWrite(const std::string& key, uint32_t first_token) PREFIXD_EXCLUDES(mutex_);

  Context* const context_;
  Far* const far_;
  SpaceBoard* const board_;
  const block::SessionId owner_;  // of its leases
  mutable base::Mutex mutex_;
  base::CondVar wake_, done_;
  std::deque<Offer> offers_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t offered_bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;
  std::optional<Offer> hit_ PREFIXD_GUARDED_BY(mutex_);
  std::atomic<int64_t> next_hit_us_{0};
  bool working_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool stopped_ PREFIXD_GUARDED_BY(mutex_) = false;
  std::atomic<bool> stopping_{false};
  WriteBudget budget_;  // of the thread that calls Step()
};

}  // namespace prefixd::cache
