// Implementation of Sequence. Belongs to one thread at a time.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "block/tokens.h"
#include "core.h"
#include "leased_pages.h"
#include "look_up.h"
#include "page_names.h"
#include "prefixd/client.h"
#include "publish.h"
#include "sequence_pages.h"
#include "space_state.h"
#include "store_job.h"

namespace prefixd {

struct Sequence::Impl {
  Impl(std::shared_ptr<client::Core> core_in, std::shared_ptr<client::SpaceState> space_in,
       const BeginOptions& options_in);

  // A lease, and what keeps its pages readable.
  struct Held {
    std::shared_ptr<client::Attachment> attachment;
    block::LeaseId lease;
  };

  const std::shared_ptr<client::Core> core;
  const std::shared_ptr<client::SpaceState> space;
  BeginOptions options;  // of the lookup, without content
  std::vector<uint32_t> tokens;
  std::vector<block::ContentKey> content;
  MatchInfo match;

  std::optional<Held> held;                   // the lease that `load` reads
  std::shared_ptr<client::CachedPages> load;  // null without a lease
  std::vector<Held> published;                // leases on own pages swapped for the arena's
  client::SequencePages pages;
  client::PageNames names;  // of leased pages that were named

  std::optional<client::Announced> announced;
  std::unique_ptr<client::BackgroundStore> storing;  // begun by StartCommit, not yet settled
  CommitInfo stored;                // by background commits since the last FinishCommit()
  absl::Status store_status;        // the first error among them
  std::vector<uint32_t> turn_ends;  // those that no Commit() has declared yet, ascending
  uint32_t committed_tokens = 0;    // whole blocks up to here are cached, stored or refused
  uint32_t end_tokens = 0;          // the last sequence end that was declared
  uint32_t read_tokens = 0;         // for a Lease: the end of the tokens that its engine took

  bool HasLayer(int layer) const {
    return layer >= 0 && static_cast<size_t>(layer) < space->layers().size();
  }
  uint32_t restorable_tokens() const;
  // Waits for the layer's pages. FailedPrecondition if the cached tokens fell short.
  absl::Status Ready(int layer, base::Deadline until = base::Deadline::max()) const;
  // Call SequencePages::Gather and GatherRows, and count the bytes.
  absl::Status Gather(const client::LayerTokens& range, const MutablePackedView& key,
                      const MutablePackedView& value) const;
  absl::Status Gather(const client::LayerTokens& range, const MutableTensorView& key,
                      const MutableTensorView& value) const;
  std::span<const uint32_t> snapshots_wanted() const;
  absl::Status PutState(int layer, uint32_t tokens, std::span<const std::byte> state);
  absl::Status GetState(int layer, std::span<std::byte> state) const;
  absl::Status CheckTokens(int layer, uint32_t begin, uint32_t count) const;

  // Looks the tokens up, once: fills match, held, load and pages. After an error there is no lease.
  void LookUp();
  // The same for several sequences at once, with one length. Requires: all are of one core.
  static void LookUpSet(std::span<const std::unique_ptr<Impl>> set);
  uint32_t Restart();
  void Release(const ReleaseInfo& info);

  absl::StatusOr<CommitInfo> Commit(const CommitOptions& with);
  bool StartCommit(const CommitOptions& with);
  absl::StatusOr<CommitInfo> FinishCommit();
  // Waits for what StartCommit() began and takes its result. Call it before changing more than the
  // end of the sequence.
  void Settle();
  // The same, before tokens from `begin` on are written, if that touches a block that is being
  // stored.
  void SettleBefore(uint32_t begin);

 private:
  absl::Status TryLookUp();
  static absl::Status TryLookUpSet(std::span<const std::unique_ptr<Impl>> set);
  bool AsksForNothing() const { return tokens.empty() || options.max_cached_tokens == 0; }
  absl::StatusOr<client::OpenedUnder> OpenForLookUp(base::Deadline deadline);
  client::Question QuestionOf(client::OpenedUnder opened) const;
  void Take(const client::OpenedUnder& opened, client::LookUpAnswer found);
  void LookedUp(const absl::Status& status);
  // Returns what Commit() would store; null if that is nothing.
  absl::StatusOr<std::shared_ptr<client::StoreJob>> PrepareStore(const CommitOptions& with,
                                                                 bool copy_tail);
  absl::StatusOr<CommitInfo> TakeStored(client::StoreJob& job);
  // `tokens`: how many were stored; the sequence may be longer by now.
  void SwapPublished(const client::OpenedUnder& opened, const client::Published& published,
                     uint32_t tokens);
  void Follow(std::optional<bool> coarser);  // takes the daemon's advice, if it gave one
  // Requires: info.used_tokens is not kAsRead.
  void GiveBack(const Held& lease, const ReleaseInfo& info);
  void GiveBackUnused(const Held& lease) { GiveBack(lease, {.used_tokens = 0}); }
  void DropReservation();
};

}  // namespace prefixd
