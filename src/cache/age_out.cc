// Age-out: the oldest segments leave when the SSD budget asks for their room. What is worth keeping
// of them was written again before; their files go in the background.
#include <algorithm>

#include "base/size.h"
#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {
namespace {

constexpr std::chrono::seconds kDropPatience(10);  // for the files of one segment to go

// Table files are a little larger than what is in them: index blocks, and sizes in whole blocks.
uint64_t FileBytesOf(uint64_t bytes) { return bytes + bytes / 16; }

}  // namespace

// Many small ones where the budget is small: what is free for the next one is not used.
uint64_t Core::SegmentBytes() const {
  constexpr uint64_t kLeast = uint64_t{1} << 20;
  return std::min(options.segment_bytes, std::max(kLeast, SsdBudget() / 64));
}

std::vector<ssd::SegmentInfo> Core::StayingSegments() const {
  // In this order: one that is removed in between is in neither.
  std::deque<ssd::SegmentInfo> going;
  {
    base::MutexLock lock(drop_mutex);
    going = dropping;
  }
  std::vector<ssd::SegmentInfo> segments = store->Segments();
  std::erase_if(segments, [&going](const ssd::SegmentInfo& segment) {
    return std::ranges::any_of(going, [&segment](const ssd::SegmentInfo& other) {
      return other.first_sequence == segment.first_sequence;
    });
  });
  return segments;
}

uint64_t Core::BytesBeingDropped() const {
  base::MutexLock lock(drop_mutex);
  uint64_t bytes = 0;
  for (const ssd::SegmentInfo& segment : dropping) bytes += segment.file_bytes;
  return bytes;
}

// A segment ahead: those that leave are still there while the one that takes over is written, so
// that nothing is lost whenever the power goes.
Leaving Core::PickLeaving(uint64_t keep_after) {
  Leaving leaving;
  uint64_t after_next = 0;
  do {
    const uint64_t files = store->FileBytes();
    after_next = files - std::min(files, BytesBeingDropped()) + 2 * FileBytesOf(SegmentBytes());
    if (after_next <= SsdBudget()) return leaving;
  } while (RemoveDamaged());
  const std::vector<ssd::SegmentInfo> segments = StayingSegments();
  const size_t count = AgeOut::CountLeaving(segments, after_next - SsdBudget(), keep_after);
  if (count == 0) return leaving;
  leaving.segments.assign(segments.begin(), segments.begin() + static_cast<ptrdiff_t>(count));
  index::RewriteOptions options =
      write_budget.has_share() ? age_out.ChooseWithin(segments, count, write_budget.left_bytes())
                               : age_out.Choose(segments, count, SsdBudget());
  options.hot_bytes = std::min(options.hot_bytes, SegmentBytes() / 4 * 3);
  leaving.blocks = index->PickRewrite(options);
  leaving.bytes = PageBytesOf(leaving.blocks);
  return leaving;
}

// Out of the index now; its files later.
void Core::Leave(const ssd::SegmentInfo& segment) {
  age_out.Rewritten(index->DropSsdRange(segment.first_sequence, segment.last_sequence));
  age_out.Dropped(segment);
  FreeTaken();
  base::MutexLock lock(drop_mutex);
  dropping.push_back(segment);
  drop_wake.NotifyAll();
}

uint64_t Core::DropsEnded() const {
  base::MutexLock lock(drop_mutex);
  return drops_ended;
}

bool Core::WaitForDrop(uint64_t seen) {
  const base::Deadline deadline = std::chrono::steady_clock::now() + kDropPatience;
  base::MutexLock lock(drop_mutex);
  while (drops_ended == seen && !drop_stop) {
    if (dropping.empty() || !drop_done.WaitUntil(drop_mutex, deadline)) return false;
  }
  return !drop_stop;
}

// What others write to the disk counts too: the SSD tier stops before it fills it.
absl::Status Core::CheckFreeSpace() const {
  if (options.ssd_free_floor_bytes == 0) return absl::OkStatus();
  const uint64_t free = store->FreeBytes();
  if (free >= options.ssd_free_floor_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the disk has ", base::FormatBytes(free), " free, the floor is ",
                   base::FormatBytes(options.ssd_free_floor_bytes)));
}

bool Core::HasSsdRoom(uint64_t bytes) {
  for (;;) {
    const uint64_t seen = DropsEnded();  // first: files that go from here on are waited for
    if (store->FileBytes() + FileBytesOf(bytes) <= SsdBudget()) return true;
    if (!RemoveDamaged() && !WaitForDrop(seen)) return false;
  }
}

// Room for a segment of `bytes` and what is written again with it, in the files as they are now.
// Where age-out a segment ahead was not enough (the budget shrank, a segment is larger than most),
// the oldest go without being written again; none newer than `keep_after`: pages of a dropped
// segment that are in RAM become dirty again, and a round that dropped its own writing would never
// end.
SsdRoom Core::MakeSsdRoom(uint64_t bytes, uint64_t keep_after, Leaving* leaving) {
  if (HasSsdRoom(bytes + leaving->bytes)) return SsdRoom::kForAll;
  if (bytes > 0 && !leaving->blocks.empty() && HasSsdRoom(leaving->bytes)) return SsdRoom::kForKept;
  if (!leaving->blocks.empty()) counters.Add("rewrites.given_up", leaving->blocks.size());
  index->AbortSpill(leaving->blocks);
  for (const ssd::SegmentInfo& segment : leaving->segments) Leave(segment);
  *leaving = {};
  // Where the disk removes no file the same segment would leave for ever.
  const uint64_t failed_before = failed_drops;
  while (!HasSsdRoom(bytes)) {
    if (failed_drops > failed_before) return SsdRoom::kNone;
    const std::vector<ssd::SegmentInfo> segments = StayingSegments();
    if (segments.empty() || segments.front().last_sequence > keep_after) return SsdRoom::kNone;
    Leave(segments.front());
  }
  return SsdRoom::kForAll;
}

void Core::DropLoop() {
  while (true) {
    ssd::SegmentInfo oldest;
    {
      base::MutexLock lock(drop_mutex);
      while (dropping.empty() && !drop_stop) drop_wake.Wait(drop_mutex);
      if (drop_stop) return;
      oldest = dropping.front();
    }
    const absl::Status status = store->DropSegment(oldest);
    if (!status.ok()) {
      ++failed_drops;
      Log(LogLevel::kWarning, absl::StrCat("ssd: cannot remove the files of a segment: ",
                                           std::string(status.message())));
    }
    counters.Add(status.ok() ? "segments.dropped" : "segments.drop_errors");
    base::MutexLock lock(drop_mutex);
    dropping.pop_front();
    ++drops_ended;
    drop_done.NotifyAll();
  }
}

}  // namespace prefixd::cache
