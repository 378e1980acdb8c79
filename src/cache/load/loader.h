// Makes pages readable: from SSD into an extent, or, for pages that an earlier daemon left in RAM,
// by checking them where they are. Nobody may read a page before it is verified.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "cache/cache.h"
#include "cache/context.h"
#include "cache/load/load_model.h"
#include "cache/load/refused.h"
#include "cache/patience.h"
#include "cache/room/page_records.h"
#include "cache/room/room.h"
#include "cache/tables/spaces.h"
#include "cache/work_signal.h"

namespace prefixd::cache {

// One request of a set, or one alone if some of its groups are sliding or states.
struct SetMember {
  const Request* request = nullptr;
  SpacePtr space;
  index::SetItem item{};
};

// A hint: pages that are held, and read when nobody waits for any other.
struct PrefetchHint {
  LeasePtr lease;
  SpacePtr space;
  std::vector<index::PageInfo> pages{};
  size_t next = 0;
  uint64_t bytes = 0;  // of all pages
};

// Thread-safe. Several threads Run() it: two reads of 1 MiB saturate the disks measured, and the
// third thread copies and checks meanwhile.
class Loader {
 public:
  static constexpr int kThreads = 3;

  // `changed` is notified whenever a page became readable or failed.
  Loader(Context* context, const Spaces* spaces, Room* room, PageRecords* records, Refused* refused,
         WorkSignal* changed)
      : context_(context),
        spaces_(spaces),
        room_(room),
        records_(records),
        refused_(refused),
        changed_(changed) {}

  // --- load.cc ---
  // Starts loading what is not readable of a lease. Shortens the answer where there is no room.
  void Start(const SpaceInfo& space, const Patience& patience, index::Acquired* held);
  // The same for a set: takes shorter leases in place of the set's until all that they need is on
  // its way.
  void StartAll(block::SessionId session, std::span<const SetMember> members,
                const Patience& patience, std::vector<index::Acquired>* held);
  // Shortens the answers to where the time saved by not computing, less the time to load, is
  // largest. Pages in RAM before the first one on SSD cost nothing and are never cut.
  // `block_tokens`: of the finest blocks.
  void CutWhatDoesNotPay(uint32_t block_tokens, double tokens_per_s,
                         std::span<index::Acquired> held) const;
  // Waits for a page. Returns it once it is readable or failed, or as it is when patience is over.
  index::PageInfo Await(const index::PageRef& page, const Patience& patience) const;

  // --- promote.cc ---
  // Waits until every page of an earlier daemon is verified: only such pages are written to the
  // SSD.
  void WaitVerified(const Patience& patience) PREFIXD_EXCLUDES(mutex_);
  void NotifyUnverified() PREFIXD_EXCLUDES(mutex_) { wake_.NotifyAll(); }
  // Loads a page, or in spare time reads ahead or verifies. False: there is nothing to do.
  bool Step() PREFIXD_EXCLUDES(mutex_);
  void Run() PREFIXD_EXCLUDES(mutex_);  // until Stop, and until every page is decided
  void Stop() PREFIXD_EXCLUDES(mutex_);

  // --- prefetch.cc ---
  // Returns the bytes that a hint reads from SSD. Lowers `tokens` to what fits into an eighth of
  // the arena beside other hints.
  uint64_t BoundPrefetch(const std::vector<index::PageInfo>& pages, uint32_t* tokens) const;
  void Prefetch(PrefetchHint hint) PREFIXD_EXCLUDES(mutex_);

  LoadModel model;

 private:
  // A page on its way to being readable (kPromoting in the index): from SSD into `extent`, or
  // checked in place.
  struct Promotion {
    index::PageInfo page;
    block::Extent extent;
    bool in_place = false;
    uint64_t queued_us = 0;
  };
  // A batch has the promotions of one request, group by group. Requests take turns, so that a large
  // one does not make the others wait.
  struct Batch {
    std::vector<Promotion> promotions;
    size_t next = 0;
  };

  void Enqueue(std::vector<Promotion> promotions) PREFIXD_EXCLUDES(mutex_);
  bool Next(Promotion* promotion) PREFIXD_EXCLUDES(mutex_);
  void Promote(const Promotion& promotion);
  void CheckInPlace(const Promotion& promotion);
  // There is no room in RAM for it: it stays on SSD.
  bool Begin(index::PageInfo* page);
  void Refuse(const index::PageRef& page);
  void GiveUp(const index::PageInfo& page, const absl::Status& status);
  bool PromotionsWait() const PREFIXD_EXCLUDES(mutex_);
  bool VerifySome() PREFIXD_EXCLUDES(mutex_);  // false: nothing is left, or another thread does it
  bool PrefetchOne() PREFIXD_EXCLUDES(mutex_);
  uint64_t NowMicros() const { return static_cast<uint64_t>(context_->Now()); }

  Context* const context_;
  const Spaces* const spaces_;
  Room* const room_;
  PageRecords* const records_;
  Refused* const refused_;
  WorkSignal* const changed_;
  std::atomic<uint64_t> prefetching_bytes_{0};  // of the hints in the queue

  mutable base::Mutex mutex_;
  base::CondVar wake_, verified_;
  std::deque<Batch> queue_ PREFIXD_GUARDED_BY(mutex_);
  std::deque<PrefetchHint> hints_ PREFIXD_GUARDED_BY(mutex_);
  bool verifying_ PREFIXD_GUARDED_BY(mutex_) = false;  // one thread does, in its spare time
  bool stopped_ PREFIXD_GUARDED_BY(mutex_) = false;
};

}  // namespace prefixd::cache
