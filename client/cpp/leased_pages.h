// The pages of a lease, read in place: the reply's columns hold their offsets in the mapped arena.
// Nothing is copied, and nothing is allocated for a page. A group is readable when the reply or the
// session's stream says so.
//
// Thread-safe: events come from the session's thread, everything else from the sequence's.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

#include "attachment.h"
#include "base/mutex.h"
#include "cached_pages.h"
#include "prefixd/v1/prefix_cache.pb.h"
#include "space_state.h"

namespace prefixd::client {

struct ArenaPlace {
  uint64_t offset = 0;
  uint32_t page_tokens = 0;
  uint32_t rung = 0;
};
// Returns the page at a place that the daemon told; nullopt if no such page can be there.
std::optional<CachedPage> PageInArena(const Attachment& attachment, const block::LayerGroup& group,
                                      const ArenaPlace& place);

class LeasedPages final : public CachedPages {
 public:
  // Moves the columns out of `pages`, one for each group of the space. Requires:
  // attachment->arena(). Internal if they do not fit plan.tokens.
  using Columns = google::protobuf::RepeatedPtrField<v1::GroupPages>;
  static absl::StatusOr<std::shared_ptr<LeasedPages>> Make(std::shared_ptr<Attachment> attachment,
                                                           std::shared_ptr<const SpaceState> space,
                                                           const LoadPlan& plan, Columns* pages);

  const LoadPlan& plan() const { return plan_; }

  void OnReady(const v1::LeaseReady& ready) PREFIXD_EXCLUDES(mutex_);
  void OnFailed(const v1::LeaseFailed& failed) PREFIXD_EXCLUDES(mutex_);

  uint32_t Wait(uint32_t group, base::Deadline until) override PREFIXD_EXCLUDES(mutex_);
  uint32_t usable_tokens() const override PREFIXD_EXCLUDES(mutex_);
  CachedPage page(uint32_t group, uint32_t block) const override;
  void Cancel() override PREFIXD_EXCLUDES(mutex_);  // also called when the session ends
  std::chrono::microseconds duration() const override PREFIXD_EXCLUDES(mutex_);

 private:
  struct Column {
    google::protobuf::RepeatedField<uint32_t> rung, page_tokens;
    google::protobuf::RepeatedField<uint64_t> offset;
  };
  LeasedPages(std::shared_ptr<Attachment> attachment, std::shared_ptr<const SpaceState> space,
              const LoadPlan& plan);
  absl::Status CheckLengths(const Columns& pages) const;
  void Take(Columns* pages) PREFIXD_REQUIRES(mutex_);
  // Returns the tokens of the group, from the first on, whose pages are inside the arena and have
  // the slots they need.
  uint32_t CheckedTokens(uint32_t group) const;
  void Close(uint32_t group, uint32_t usable_tokens) PREFIXD_REQUIRES(mutex_);

  const std::shared_ptr<Attachment> attachment_;
  const std::shared_ptr<const SpaceState> space_;
  const LoadPlan plan_;
  std::vector<Column> columns_;  // one for each group; constant once the group is done

  mutable base::Mutex mutex_;  // guards what follows
  mutable base::CondVar changed_;
  LoadProgress progress_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::client
