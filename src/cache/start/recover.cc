// Recover: the tree back from the records of the SSD tier, without reading a page.
#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "base/status.h"
#include "cache/start/decoded_records.h"
#include "cache/start/index_loader.h"

namespace prefixd::cache {
namespace {

// Pages whose segment is still there; sequences are never reused, so a page of a dropped segment
// cannot be mistaken.
void KeepLivePages(const std::vector<ssd::SegmentInfo>& segments,
                   std::vector<index::RestoredPage>* pages) {
  std::erase_if(*pages, [&segments](const index::RestoredPage& page) {
    const auto after = std::ranges::upper_bound(segments, page.ssd_sequence, {},
                                                &ssd::SegmentInfo::first_sequence);
    return after == segments.begin() || page.ssd_sequence > std::prev(after)->last_sequence;
  });
}

// The latest use that a segment's records know of: about when it was written.
class LatestUses {
 public:
  explicit LatestUses(std::vector<ssd::SegmentInfo> segments)
      : segments_(std::move(segments)), uses_(segments_.size()) {}
  void Add(uint64_t sequence, int64_t last_use) {
    const auto after =
        std::ranges::upper_bound(segments_, sequence, {}, &ssd::SegmentInfo::first_sequence);
    if (after == segments_.begin()) return;
    int64_t& use = uses_[static_cast<size_t>(after - segments_.begin()) - 1];
    use = std::max(use, last_use);
  }
  void TellTo(AgeOutPolicy* policy) const {
    for (size_t i = 0; i < segments_.size(); ++i) policy->Written(segments_[i], uses_[i]);
  }

 private:
  const std::vector<ssd::SegmentInfo> segments_;  // by sequence
  std::vector<int64_t> uses_;
};

struct Counts {
  uint64_t restored = 0, orphans = 0, unreadable = 0, foreign = 0;
};

// Puts records into the tree as they are read. One that is read before its parent's waits for it:
// rewriting writes parents anew behind their children.
class Rebuild {
 public:
  Rebuild(Context* context, const Spaces* spaces, std::vector<ssd::SegmentInfo> segments,
          ssd::ClearedBorders borders)
      : context_(context),
        spaces_(spaces),
        segments_(std::move(segments)),
        borders_(std::move(borders)),
        uses_(segments_) {}

  void Add(DecodedRecord decoded) {
    const uint64_t sequence = decoded.sequence;
    absl::StatusOr<BlockRecord>& record = decoded.record;
    if (!record.ok()) {
      ++counts.unreadable;
      return;
    }
    if (borders_.Cover(record->space, sequence)) return;
    uses_.Add(sequence, record->last_use);
    const SpacePtr& space = SpaceOf(record->space);
    if (space == nullptr) {
      ++counts.foreign;
      return;
    }
    record->block.record_sequence = sequence;
    record->block.last_use = record->last_use;
    KeepLivePages(segments_, &record->block.pages);
    Restore({space, std::move(record->block)});
  }

  // Those that still wait: their parent may have been stored by a worker meanwhile.
  void End() {
    for (auto& [parent, blocks] : std::exchange(waiting_, {})) {
      for (Found& found : Waited(std::move(blocks))) Restore(std::move(found));
    }
    for (const auto& [parent, blocks] : waiting_) counts.orphans += blocks.size();
  }

  ~Rebuild() {
    for (auto& [parent, blocks] : waiting_) Waited(std::move(blocks));
  }
  Rebuild(const Rebuild&) = delete;
  Rebuild& operator=(const Rebuild&) = delete;

  Counts counts;
  const LatestUses& uses() const { return uses_; }

 private:
  struct Found {
    SpacePtr space;
    index::RestoredBlock block;
  };

  // One space after the other, mostly.
  const SpacePtr& SpaceOf(const block::SpaceId& id) {
    if (space_ == nullptr || space_->id != id) space_ = spaces_->Find(id);
    return space_;
  }

  // In the gauge for as long as it waits.
  void Wait(Found found) {
    context_->in_flight_bytes += MemoryOf(found.block);
    waiting_[found.block.serials.parent].push_back(std::move(found));
  }
  std::vector<Found> Waited(std::vector<Found> blocks) {
    for (const Found& found : blocks) context_->in_flight_bytes -= MemoryOf(found.block);
    return blocks;
  }

  // And what waited for it.
  void Restore(Found found) {
    std::vector<Found> ready;
    ready.push_back(std::move(found));
    while (!ready.empty()) {
      Found next = std::move(ready.back());
      ready.pop_back();
      const absl::Status status = context_->index->Restore(next.space->handle, next.block);
      if (absl::IsNotFound(status)) {
        Wait(std::move(next));
        continue;
      }
      ++(status.ok() ? counts.restored : counts.orphans);
      std::vector<uint64_t> serials = std::move(next.block.other_serials);
      serials.push_back(next.block.serials.own);
      for (const uint64_t serial : serials) {
        const auto children = waiting_.find(serial);
        if (children == waiting_.end()) continue;
        std::ranges::move(Waited(std::move(children->second)), std::back_inserter(ready));
        waiting_.erase(children);
      }
    }
  }

  Context* const context_;
  const Spaces* const spaces_;
  const std::vector<ssd::SegmentInfo> segments_;
  const ssd::ClearedBorders borders_;
  LatestUses uses_;
  SpacePtr space_;
  absl::flat_hash_map<uint64_t, std::vector<Found>> waiting_;  // by their parent's serial
};

}  // namespace

absl::Status IndexLoader::Recover() {
  const std::vector<ssd::SegmentInfo> segments = context_->store->Segments();
  Rebuild rebuild(context_, spaces_, segments, context_->store->Borders());
  DecodedRecords records(context_->store.get(), &context_->in_flight_bytes);
  for (auto batch = records.Next(); !batch.empty(); batch = records.Next()) {
    if (stopped_) return absl::CancelledError("recover: stopping");
    for (DecodedRecord& record : batch) rebuild.Add(std::move(record));
    room_->FitIndex();
  }
  rebuild.End();
  rebuild.uses().TellTo(&segments_->policy);
  const Counts& counts = rebuild.counts;
  const uint64_t unreadable = records.unreadable() + counts.unreadable;
  context_->counters.AddAll({{"recovered.records", counts.restored},
                             {"recovered.orphans", counts.orphans},
                             {"recovered.unreadable", unreadable},
                             {"recovered.foreign", counts.foreign}});
  context_->Log(
      LogLevel::kInfo,
      absl::StrCat("recovered ", counts.restored, " records of blocks from ", segments.size(),
                   " segments (", base::FormatBytes(context_->store->FileBytes()),
                   " on disk); left out: ", counts.orphans, " without parent, ", unreadable,
                   " unreadable, ", counts.foreign, " of unknown spaces"));
  return records.status();
}

}  // namespace prefixd::cache
