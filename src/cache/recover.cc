// Recover: the tree back from the records of the SSD tier, without reading a page.
#include <algorithm>
#include <cstring>
#include <map>

#include "base/bytes.h"
#include "base/size.h"
#include "base/status.h"
#include "cache/core.h"
#include "cache/record.h"

namespace prefixd::cache {
namespace {

struct Found {
  uint64_t sequence = 0;
  BlockRecord record;
};

// Sequences of one space up to which everything was cleared.
using Borders = std::map<std::string, uint64_t>;

absl::StatusOr<Borders> ReadBorders(const ssd::SegmentStore& store) {
  Borders borders;
  PREFIXD_ASSIGN_OR_RETURN(const auto entries, store.ListMeta("cleared/"));
  for (const auto& [key, value] : entries) {
    base::ByteReader reader(base::AsBytes(value));
    borders[key.substr(std::strlen("cleared/"))] = reader.Fixed<uint64_t>();
  }
  return borders;
}

// Pages whose segment is still there; sequences are never reused, so a page of a dropped segment
// cannot be mistaken.
void KeepLivePages(const std::vector<ssd::SegmentInfo>& segments,
                   std::vector<index::RestoredPage>* pages) {
  std::erase_if(*pages, [&segments](const index::RestoredPage& page) {
    return std::ranges::none_of(segments, [&page](const ssd::SegmentInfo& segment) {
      return segment.first_sequence <= page.ssd_sequence &&
             page.ssd_sequence <= segment.last_sequence;
    });
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
  void TellTo(AgeOut* age_out) const {
    for (size_t i = 0; i < segments_.size(); ++i) age_out->Written(segments_[i], uses_[i]);
  }

 private:
  const std::vector<ssd::SegmentInfo> segments_;  // by sequence
  std::vector<int64_t> uses_;
};

}  // namespace

absl::Status Core::Recover() {
  PREFIXD_ASSIGN_OR_RETURN(const auto identities, store->ListMeta("space/"));
  for (const auto& [key, encoded] : identities) {
    const absl::StatusOr<block::SpaceIdentity> identity = block::DecodeSpaceIdentity(encoded);
    bool created = false;
    if (identity.ok()) {
      AddSpace(*identity, &created);
    } else {
      Log(LogLevel::kWarning,
          absl::StrCat("recover: ", key, " is not readable, its blocks are left out"));
    }
  }
  PREFIXD_ASSIGN_OR_RETURN(const Borders borders, ReadBorders(*store));
  const std::vector<ssd::SegmentInfo> segments = store->Segments();
  LatestUses uses(segments);
  std::map<block::BlockHash, Found> newest;  // a block's later record replaces the earlier
  uint64_t unreadable = 0, foreign = 0, orphans = 0, restored = 0;
  PREFIXD_RETURN_IF_ERROR(store->ForEachRecord(
      [&](uint64_t sequence, std::span<const std::byte> bytes) {
        absl::StatusOr<BlockRecord> record = DecodeRecord(bytes);
        if (!record.ok()) {
          ++unreadable;
          return absl::OkStatus();
        }
        auto border = borders.find(base::ToHex(record->space));
        if (border != borders.end() && sequence <= border->second) return absl::OkStatus();
        uses.Add(sequence, record->last_use);
        newest[record->block.hash] = {sequence, *std::move(record)};
        return absl::OkStatus();
      },
      &unreadable));

  std::vector<Found*>
      order;  // parents before children, then coldest first so that recency survives
  for (auto& [hash, found] : newest) order.push_back(&found);
  std::ranges::sort(order, [](const Found* a, const Found* b) {
    return std::tie(a->record.first_token, a->record.last_use, a->sequence) <
           std::tie(b->record.first_token, b->record.last_use, b->sequence);
  });
  for (Found* found : order) {
    found->record.block.record_sequence = found->sequence;
    found->record.block.last_use = found->record.last_use;
    KeepLivePages(segments, &found->record.block.pages);
    const SpacePtr space = SpaceOf(found->record.space);
    if (space == nullptr) {
      ++foreign;
      continue;
    }
    const absl::Status status = index->Restore(space->handle, found->record.block);
    ++(status.ok() ? restored : orphans);
  }
  {
    base::MutexLock lock(segment_mutex);
    uses.TellTo(&age_out);
  }
  counters.AddAll({{"recovered.blocks", restored},
                   {"recovered.orphans", orphans},
                   {"recovered.unreadable", unreadable},
                   {"recovered.foreign", foreign}});
  Log(LogLevel::kInfo,
      absl::StrCat("recovered ", restored, " blocks of ", identities.size(), " spaces from ",
                   segments.size(), " segments (", base::FormatBytes(store->FileBytes()),
                   " on disk); left out: ", orphans, " without parent, ", unreadable,
                   " unreadable, ", foreign, " of unknown spaces"));
  return absl::OkStatus();
}

}  // namespace prefixd::cache
