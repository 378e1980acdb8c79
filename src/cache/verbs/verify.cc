#include "cache/verbs/verify.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "block/block_hash.h"
#include "cache/store/record.h"
#include "cache/verbs/verbs.h"

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

}  // namespace

// Holds a pace of so many bytes a second since it was made, while patience lasts.
class Verifier::Pace {
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

// Its state may change while it is read: bad is what is bad, and still there afterwards.
bool Verifier::IsBadInRam(const index::PageInfo& page) const {
  const std::span<const std::byte> bytes(context_->arena->data(page.extent), page.page_bytes);
  const auto right = [&] { return block::PageCheck(page.name, bytes) == page.check; };
  if (right()) return false;
  const index::PageInfo now = context_->index->WaitWhilePromoting(page.ref, base::Deadline());
  return index::InRam(now.state) && now.extent == page.extent && now.check == page.check &&
         !right();
}

// Pages that nobody holds; a page on SSD too is read from there next time. One that is held cannot
// be dropped, and its readers are past it.
void Verifier::VerifySlab(uint64_t begin, uint64_t end, Pace& pace, VerifyProgress* progress) {
  for (const index::PageInfo& page : context_->index->PickMovable(begin, end, &progress->in_use)) {
    ++progress->pages;
    progress->bytes += page.page_bytes;
    if (IsBadInRam(page)) {
      ++progress->bad;
      context_->counters.Add("check_failures");
      // Its extent may be another page's by now, which is none of this one's faults.
      context_->CountEvicted(context_->index->EvictPicked(page.ref, page.extent));
      context_->FreeTaken();
      context_->Log(LogLevel::kWarning, absl::StrCat("verify: the page at arena offset ",
                                                     page.extent.offset, " is bad and dropped"));
    }
    pace.Add(page.page_bytes);
  }
}

void Verifier::VerifySegment(const ssd::SegmentInfo& segment, Pace& pace,
                             VerifyProgress* progress) {
  const VerifyProgress before = *progress;
  std::vector<std::byte> page;
  std::vector<uint64_t> bad;
  const auto verify = [&](const BlockRecord& record, const index::RestoredPage& stored) {
    const block::PageName name{.space = record.space,
                               .block = BlockOf(context_->hasher, record.block, stored),
                               .group = static_cast<uint16_t>(stored.group),
                               .rung = static_cast<uint16_t>(stored.rung),
                               .tokens = stored.tokens};
    page.resize(stored.page_bytes);
    const absl::Status status =
        context_->store->ReadPage(stored.ssd_sequence, name, stored.check, page);
    ++progress->pages;
    progress->bytes += stored.page_bytes;
    if (absl::IsDataLoss(status)) {
      ++progress->bad;
      context_->counters.Add("check_failures");
      bad.push_back(stored.ssd_sequence);
      context_->Log(LogLevel::kWarning,
                    absl::StrCat("verify: page at ssd sequence ", stored.ssd_sequence,
                                 " is bad and dropped: ", std::string(status.message())));
    } else if (!status.ok()) {
      ++progress->unreadable;
    }
    pace.Add(stored.page_bytes);
  };
  uint64_t unreadable = 0;
  const absl::Status read = context_->store->ForEachRecordOf(
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
    context_->index->DropSsdPages(std::move(bad));
    context_->FreeTaken();
  }
  if (progress->bad + progress->unreadable == before.bad + before.unreadable) return;
  // What leaves while it is read is neither bad nor missed; a start's test page goes under the
  // lock.
  base::MutexLock lock(segments_->mutex);
  const auto same = [&](const ssd::SegmentInfo& other) {
    return other.first_sequence == segment.first_sequence;
  };
  if (std::ranges::none_of(dropper_->Staying(), same)) {
    progress->bad = before.bad;
    progress->unreadable = before.unreadable;
  }
}

void Verifier::Verify(uint64_t cursor, Pace& pace, VerifyProgress* progress) {
  const ram::ArenaStats stats = context_->arena->stats();
  if ((cursor & kOnSsd) == 0 && cursor < stats.capacity_bytes) {
    VerifySlab(cursor, cursor + stats.slab_bytes, pace, progress);
    progress->passed_bytes = std::min(stats.slab_bytes, stats.capacity_bytes - cursor);
    progress->next = cursor + stats.slab_bytes;
    const bool more = progress->next < stats.capacity_bytes;
    if (!more) progress->next = context_->store == nullptr ? 0 : kOnSsd;
    return;
  }
  if (context_->store == nullptr) return;
  for (const ssd::SegmentInfo& segment : dropper_->Staying()) {
    if (segment.first_sequence <= (cursor & ~kOnSsd)) continue;
    VerifySegment(segment, pace, progress);
    progress->passed_bytes = segment.file_bytes;
    progress->next = segment.first_sequence | kOnSsd;
    return;
  }
}

VerifyProgress Verifier::Step(uint64_t cursor, uint64_t bytes_per_s, const Patience& patience) {
  base::MutexLock one(mutex_);
  Pace pace(bytes_per_s, patience);
  VerifyProgress progress{.total_bytes = verbs::BytesInBothTiers(*context_, *dropper_)};
  Verify(cursor, pace, &progress);
  context_->counters.AddAll({{"verify.pages", progress.pages},
                             {"verify.bytes", progress.bytes},
                             {"verify.bad", progress.bad}});
  return progress;
}

}  // namespace prefixd::cache
