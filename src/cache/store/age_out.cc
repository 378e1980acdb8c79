// Age-out: the oldest segments leave when the SSD budget asks for their room. Blocks worth keeping
// are written again before; the files go in the background.
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "base/status.h"
#include "cache/store/segments.h"

namespace prefixd::cache {
namespace {

// Table files are a little larger than what is in them: index blocks, and sizes in whole blocks.
uint64_t FileBytesOf(uint64_t bytes) { return bytes + bytes / 16; }

}  // namespace

// Many small ones where the budget is small: what is free for the next one is not used.
uint64_t Segments::SegmentBytes() const {
  constexpr uint64_t kLeast = uint64_t{1} << 20;
  return std::min(context_->options.segment_bytes, std::max(kLeast, Budget() / 64));
}

// A segment ahead: those that leave are still there while the one that takes over is written, so
// that nothing is lost whenever the power goes.
Leaving Segments::PickLeaving(uint64_t keep_after) {
  Leaving leaving;
  uint64_t after_next = 0;
  do {
    const uint64_t files = context_->store->FileBytes();
    after_next = files - std::min(files, dropper_->BytesGoing()) + 2 * FileBytesOf(SegmentBytes());
    if (after_next <= Budget()) return leaving;
  } while (RemoveDamaged());
  const std::vector<ssd::SegmentInfo> segments = dropper_->Staying();
  const size_t count = AgeOutPolicy::CountLeaving(segments, after_next - Budget(), keep_after);
  if (count == 0) return leaving;
  leaving.segments.assign(segments.begin(), segments.begin() + static_cast<ptrdiff_t>(count));
  index::RewriteOptions options =
      write_budget_.has_share() ? policy.ChooseWithin(segments, count, write_budget_.left_bytes())
                                : policy.Choose(segments, count, Budget());
  options.hot_bytes = std::min(options.hot_bytes, SegmentBytes() / 4 * 3);
  leaving.blocks = context_->index->PickRewrite(options);
  leaving.bytes = PageBytesOf(leaving.blocks);
  return leaving;
}

void Segments::Leave(const ssd::SegmentInfo& segment) {
  policy.Rewritten(context_->index->DropSsdRange(segment.first_sequence, segment.last_sequence));
  policy.Dropped(segment);
  context_->FreeTaken();
  dropper_->Add(segment);
}

// What others write to the disk counts too: the SSD tier stops before it fills it.
absl::Status Segments::CheckFreeSpace() const {
  if (context_->options.ssd_free_floor_bytes == 0) return absl::OkStatus();
  const uint64_t free = context_->store->FreeBytes();
  if (free >= context_->options.ssd_free_floor_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the disk has ", base::FormatBytes(free),
                   " free, nothing is written below half of the floor, ",
                   base::FormatBytes(context_->options.ssd_free_floor_bytes)));
}

bool Segments::HasRoom(uint64_t bytes) {
  for (;;) {
    const uint64_t seen = dropper_->ended();  // first: files that go from here on are waited for
    if (context_->store->FileBytes() + FileBytesOf(bytes) <= Budget()) return true;
    if (!RemoveDamaged() && !dropper_->WaitBeyond(seen)) return false;
  }
}

SsdRoom Segments::MakeRoom(uint64_t bytes, uint64_t keep_after, Leaving* leaving) {
  if (HasRoom(bytes + leaving->bytes)) return SsdRoom::kForAll;
  if (bytes > 0 && !leaving->blocks.empty() && HasRoom(leaving->bytes)) return SsdRoom::kForKept;
  if (!leaving->blocks.empty()) context_->counters.Add("rewrites.given_up", leaving->blocks.size());
  context_->index->AbortSpill(leaving->blocks);
  for (const ssd::SegmentInfo& segment : leaving->segments) Leave(segment);
  *leaving = {};
  // Where the disk removes no file the same segment would leave for ever.
  const uint64_t failed_before = dropper_->failed();
  while (!HasRoom(bytes)) {
    if (dropper_->failed() > failed_before) return SsdRoom::kNone;
    const std::vector<ssd::SegmentInfo> segments = dropper_->Staying();
    if (segments.empty() || segments.front().last_sequence > keep_after) return SsdRoom::kNone;
    Leave(segments.front());
  }
  return SsdRoom::kForAll;
}

absl::Status Segments::CheckBudget(uint64_t ssd_bytes) const {
  if (context_->store == nullptr) {
    return absl::FailedPreconditionError(
        context_->has_ssd()
            ? "budget: the SSD tier is closed and is tried again, prefixd's log says why; set its "
              "budget once it is open"
            : "budget: prefixd runs without an SSD tier; start it with an SSD budget");
  }
  if (ssd_bytes < 2 * context_->options.segment_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "budget: ", base::FormatBytes(ssd_bytes), " on SSD is too little, two segments are ",
        base::FormatBytes(2 * context_->options.segment_bytes)));
  }
  return CheckFloorsFit("SSD", limited_->AllFloors().ssd_bytes, ssd_bytes);
}

absl::Status Segments::Resize(uint64_t ssd_bytes) {
  base::MutexLock lock(mutex);
  context_->ssd_budget_bytes = ssd_bytes;
  Leaving none;
  if (MakeRoom(0, ~uint64_t{0}, &none) != SsdRoom::kNone) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("budget: ", base::FormatBytes(context_->store->FileBytes()),
                   " are on SSD still, their files cannot be removed"));
}

bool Segments::RemoveDamaged() {
  const absl::Status removed = context_->store->RemoveDamaged();
  if (removed.ok()) context_->counters.Add("ssd.damaged_removed");
  if (!removed.ok() && !absl::IsNotFound(removed)) {
    context_->Log(LogLevel::kWarning, absl::StrCat("ssd: ", std::string(removed.message())));
  }
  return removed.ok();
}

}  // namespace prefixd::cache
