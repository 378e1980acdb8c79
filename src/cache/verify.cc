// Verify: reads what is stored and drops what is bad, slab by slab and segment by segment.
#include <algorithm>
#include <thread>

#include "base/status.h"
#include "block/block_hash.h"
#include "cache/core.h"
#include "cache/record.h"

namespace prefixd::cache {
namespace {

// Cursors: offsets in the arena, then sequences of the SSD tier with this bit.
constexpr uint64_t kOnSsd = uint64_t{1} << 63;
constexpr uint64_t kMaxVerifiedPage = uint64_t{1} << 30;  // memory for one page is ours meanwhile

// A snapshot inside a block is named by the block that its own tokens would make.
block::BlockHash BlockOf(const block::BlockHasher& hasher, const index::RestoredBlock& block,
                         const index::RestoredPage& page) {
  if (page.tokens >= block.tokens.size()) return block.hash;
  const std::vector<block::ContentKey> keys = block::CutContent(block.content, 0, page.tokens);
  return hasher.Hash(block.parent, {std::span(block.tokens).first(page.tokens), keys});
}

// Holds a pace of so many bytes a second since it was made, while patience lasts.
class Pace {
 public:
  Pace(uint64_t bytes_per_s, const Patience& patience)
      : bytes_per_s_(bytes_per_s), patience_(patience) {}
  void Add(uint64_t bytes) {
    bytes_ += bytes;
    if (bytes_per_s_ == 0) return;
    const auto due = std::chrono::duration<double>(static_cast<double>(bytes_) /
                                                   static_cast<double>(bytes_per_s_));
    while (std::chrono::steady_clock::now() - begun_ < due && !patience_.over()) {
      std::this_thread::sleep_until(patience_.next_look());
    }
  }

 private:
  const uint64_t bytes_per_s_;
  const Patience patience_;
  const base::Deadline begun_ = std::chrono::steady_clock::now();
  uint64_t bytes_ = 0;
};

}  // namespace

// Its state may change while it is read: bad is what is bad, and still there afterwards.
bool Core::IsBadInRam(const index::PageInfo& page) const {
  const std::span<const std::byte> bytes(arena->data(page.extent), page.page_bytes);
  const auto right = [&] { return block::PageCheck(page.name, bytes) == page.check; };
  if (right()) return false;
  const index::PageInfo now = index->WaitWhilePromoting(page.ref, base::Deadline());
  return index::InRam(now.state) && now.extent == page.extent && now.check == page.check &&
         !right();
}

// Pages that nobody holds; a page on SSD too is read from there next time. One that is held cannot
// be dropped, and its readers are past it.
void Core::VerifySlab(uint64_t begin, uint64_t end, const PaceCallback& pace,
                      VerifyProgress* progress) {
  for (const index::PageInfo& page : index->PickMovable(begin, end, &progress->in_use)) {
    ++progress->pages;
    progress->bytes += page.page_bytes;
    if (IsBadInRam(page)) {
      ++progress->bad;
      counters.Add("check_failures");
      // Its extent may be another page's by now, which is none of this one's faults.
      CountEvicted(index->EvictPicked(page.ref, page.extent));
      FreeTaken();
      Log(LogLevel::kWarning, absl::StrCat("verify: the page at arena offset ", page.extent.offset,
                                           " is bad and dropped"));
    }
    pace(page.page_bytes);
  }
}

void Core::VerifySegment(const ssd::SegmentInfo& segment, const PaceCallback& pace,
                         VerifyProgress* progress) {
  const VerifyProgress before = *progress;
  std::vector<std::byte> page;
  std::vector<uint64_t> bad;
  const auto verify = [&](const BlockRecord& record, const index::RestoredPage& stored) {
    const block::PageName name{.space = record.space,
                               .block = BlockOf(hasher, record.block, stored),
                               .group = static_cast<uint16_t>(stored.group),
                               .rung = static_cast<uint16_t>(stored.rung),
                               .tokens = stored.tokens};
    page.resize(stored.page_bytes);
    const absl::Status status = store->ReadPage(stored.ssd_sequence, name, stored.check, page);
    ++progress->pages;
    progress->bytes += stored.page_bytes;
    if (absl::IsDataLoss(status)) {
      ++progress->bad;
      counters.Add("check_failures");
      bad.push_back(stored.ssd_sequence);
      Log(LogLevel::kWarning, absl::StrCat("verify: page at ssd sequence ", stored.ssd_sequence,
                                           " is bad and dropped: ", std::string(status.message())));
    } else if (!status.ok()) {
      ++progress->unreadable;
    }
    pace(stored.page_bytes);
  };
  uint64_t unreadable = 0;
  const absl::Status read = store->ForEachRecordOf(
      segment,
      [&](uint64_t, std::span<const std::byte> bytes) {
        const absl::StatusOr<BlockRecord> record = DecodeRecord(bytes);
        if (!record.ok()) ++unreadable;
        if (!record.ok()) return absl::OkStatus();
        for (const index::RestoredPage& stored : record->block.pages) {
          const bool here = stored.ssd_sequence >= segment.first_sequence &&
                            stored.ssd_sequence <= segment.last_sequence;
          if (here && stored.page_bytes <= kMaxVerifiedPage) verify(*record, stored);
        }
        return absl::OkStatus();
      },
      &unreadable);
  progress->unreadable += unreadable + (read.ok() ? 0 : 1);
  if (!bad.empty()) {
    // Gone, or dirty again where RAM has it: then it is written anew.
    index->DropSsdPages(std::move(bad));
    FreeTaken();
  }
  if (progress->bad + progress->unreadable == before.bad + before.unreadable) return;
  // What leaves while it is read is neither bad nor missed; a start's test page goes under the
  // lock.
  base::MutexLock lock(segment_mutex);
  const auto same = [&](const ssd::SegmentInfo& other) {
    return other.first_sequence == segment.first_sequence;
  };
  if (std::ranges::none_of(StayingSegments(), same)) {
    progress->bad = before.bad;
    progress->unreadable = before.unreadable;
  }
}

uint64_t Core::VerifyTotal() const {
  uint64_t bytes = arena->stats().capacity_bytes;
  if (store == nullptr) return bytes;
  for (const ssd::SegmentInfo& segment : StayingSegments()) bytes += segment.file_bytes;
  return bytes;
}

VerifyProgress Core::VerifyStep(uint64_t cursor, const PaceCallback& pace) {
  VerifyProgress progress{.total_bytes = VerifyTotal()};
  const ram::ArenaStats stats = arena->stats();
  if ((cursor & kOnSsd) == 0 && cursor < stats.capacity_bytes) {
    VerifySlab(cursor, cursor + stats.slab_bytes, pace, &progress);
    progress.passed_bytes = std::min(stats.slab_bytes, stats.capacity_bytes - cursor);
    progress.next = cursor + stats.slab_bytes;
    const bool more = progress.next < stats.capacity_bytes;
    if (!more) progress.next = store == nullptr ? 0 : kOnSsd;
    return progress;
  }
  if (store == nullptr) return progress;
  for (const ssd::SegmentInfo& segment : StayingSegments()) {
    if (segment.first_sequence <= (cursor & ~kOnSsd)) continue;
    VerifySegment(segment, pace, &progress);
    progress.passed_bytes = segment.file_bytes;
    progress.next = segment.first_sequence | kOnSsd;
    return progress;
  }
  return progress;
}

VerifyProgress Cache::Verify(uint64_t cursor, uint64_t bytes_per_s, const Patience& patience) {
  base::MutexLock one(core_->verify_mutex);
  Pace pace(bytes_per_s, patience);
  const VerifyProgress progress =
      core_->VerifyStep(cursor, [&pace](uint64_t bytes) { pace.Add(bytes); });
  core_->counters.AddAll({{"verify.pages", progress.pages},
                          {"verify.bytes", progress.bytes},
                          {"verify.bad", progress.bad}});
  return progress;
}

}  // namespace prefixd::cache
