// The SSD tier's start: with the cache, or later, when its disk can be had; and borders that wait
// for a disk that refuses them.
#include <algorithm>
#include <filesystem>

#include "base/bytes.h"
#include "base/secret_file.h"
#include "base/size.h"
#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {
namespace {

constexpr std::chrono::milliseconds kLongestRetry(60'000);

// Nothing that time mends: another daemon, somebody else's directory, a later format.
bool IsRefusal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status) ||
         absl::IsInvalidArgument(status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ssd::SegmentStore>> Core::OpenStore(const base::LockWait& wait) {
  // The disk may have been mounted since.
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(options.directory).parent_path(),
                                      ignored);
  // A key that cannot be read now is no reason to throw away what was made with it. One that could
  // not be read at the start is not that of the pages in RAM.
  const auto key = base::ReadSecret(KeyPlaces().store);
  if (!key.ok() && !absl::IsDataLoss(key.status())) {
    return absl::UnavailableError(key.status().message());
  }
  if (key.ok() && key->has_value() && **key != hash_key) {
    return absl::UnavailableError(
        absl::StrCat(options.directory,
                     " has another key of block hashes than was chosen without it: a restart "
                     "takes it"));
  }
  PREFIXD_ASSIGN_OR_RETURN(std::unique_ptr<ssd::SegmentStore> opened,
                           ssd::SegmentStore::Open({.directory = options.directory,
                                                    .direct_io = options.direct_io,
                                                    .block_cache_bytes = shares.ssd_bytes / 4,
                                                    .files = options.ssd_files,
                                                    .open_free_bytes = options.ssd_open_free_bytes,
                                                    .lock_wait = wait,
                                                    .key_id = IdOf(hash_key)}));
  // Before anything is stored: what is made with a key that is lost can never be read.
  PREFIXD_RETURN_IF_ERROR(KeepHashKey(KeyPlaces().store, hash_key));
  SayFindings(*opened);
  return opened;
}

void Core::SayFindings(const ssd::SegmentStore& opened) {
  const ssd::SegmentStore::Findings& found = opened.findings();
  if (!found.reclaimed_why.empty()) {
    counters.Add("ssd.reclaimed");
    Log(LogLevel::kWarning, absl::StrCat("ssd: what was in ", options.directory,
                                         " is thrown away: ", found.reclaimed_why));
  }
  if (!found.moved_aside.empty()) {
    counters.Add("ssd.moved_aside");
    const ssd::SegmentStore::Kept kept = opened.DamagedCopies();
    Log(LogLevel::kError, absl::StrCat("ssd: the store was damaged and is now in ",
                                       found.moved_aside, ", a new one is begun; ", kept.count,
                                       " such copies take ", base::FormatBytes(kept.bytes),
                                       " of the tier until it needs them: ", found.moved_why));
  }
  if (!found.cleared_why.empty()) {
    counters.Add("ssd.borders_lost");
    Log(LogLevel::kError,
        absl::StrCat("ssd: nothing of what is there is served: ", found.cleared_why));
  }
  for (const std::string& note : found.notes) {
    counters.Add("ssd.metadata_damaged");
    Log(LogLevel::kWarning, "ssd: " + note);
  }
  if (options.direct_io && !opened.direct_io()) {
    counters.Add("ssd.buffered");
    Log(LogLevel::kWarning,
        absl::StrCat("ssd: the filesystem of ", options.directory,
                     " refuses direct I/O: buffered, the page cache told to let go"));
  }
}

// What was cleared while there was no store is all that it has of these spaces.
absl::Status Core::TakeStore(std::unique_ptr<ssd::SegmentStore> opened) {
  if (clears_wait.all || !clears_wait.spaces.empty()) {
    ssd::ClearedBorders borders{.all = clears_wait.all ? opened->last_sequence() : 0};
    for (const block::SpaceId& space : clears_wait.spaces) {
      borders.spaces[space] = opened->last_sequence();
    }
    PREFIXD_RETURN_IF_ERROR(opened->AddBorders(borders));
    clears_wait = {};
    border_waits = false;
  }
  PREFIXD_ASSIGN_OR_RETURN(const auto spaces, opened->ListMeta("space/"));
  PREFIXD_ASSIGN_OR_RETURN(const auto limits, opened->ListMeta("limits/"));
  store.Set(std::move(opened));
  RecoverSpaces(spaces);
  LoadLimits(limits);
  write_budget.SaveUpTo(SsdBudget());
  write_budget.Add(SsdBudget() - std::min(SsdBudget(), store->FileBytes()));
  may_write_bytes = write_budget.left_bytes();
  return absl::OkStatus();
}

absl::Status Core::StartTier() {
  absl::StatusOr<std::unique_ptr<ssd::SegmentStore>> opened = OpenStore(LockWait());
  absl::Status status = opened.status();
  if (opened.ok()) {
    base::MutexLock segment(segment_mutex);
    status = TakeStore(*std::move(opened));
  }
  if (status.ok() || IsRefusal(status)) return status;
  SayClosed(status);
  return absl::OkStatus();
}

void Core::SayClosed(const absl::Status& status) {
  counters.Add("ssd.open_failed");
  const std::string why(status.message());
  if (std::exchange(closed_why, why) == why) return;
  Log(LogLevel::kError,
      absl::StrCat("ssd: the tier cannot be opened, serving goes on from RAM alone and it is tried "
                   "again: ",
                   why));
}

void Core::LetTierWork() {
  base::MutexLock lock(spill_mutex);
  tier_works = true;
  spill_wake.NotifyAll();
}

// As a start, but that requests are served meanwhile: they say that the index is loading.
absl::Status Core::OpenLate() {
  PREFIXD_ASSIGN_OR_RETURN(
      std::unique_ptr<ssd::SegmentStore> opened,
      OpenStore({.limit = std::min(options.lock_wait, std::chrono::milliseconds(100))}));
  BeginLoading();
  absl::Status status;
  {
    base::MutexLock segment(segment_mutex);
    status = TakeStore(std::move(opened));
    if (status.ok()) SayNotWhole(Recover());
  }
  EndLoading();
  PREFIXD_RETURN_IF_ERROR(status);
  counters.Add("ssd.opened_late");
  Log(LogLevel::kInfo, absl::StrCat("ssd: the tier in ", options.directory, " is open now"));
  LetTierWork();
  WakeSpiller();
  return absl::OkStatus();
}

bool Core::SetBorders(std::span<const block::SpaceId> spaces, bool all) {
  if (options.ssd_budget_bytes == 0) return true;
  if (store == nullptr) {
    border_waits = true;
    clears_wait.all = clears_wait.all || all;
    clears_wait.spaces.insert(spaces.begin(), spaces.end());
    return false;
  }
  ssd::ClearedBorders borders{.all = all ? store->last_sequence() : 0};
  for (const block::SpaceId& space : spaces) borders.spaces[space] = store->last_sequence();
  const absl::Status saved = store->AddBorders(borders);
  border_waits = !saved.ok();
  if (saved.ok()) return true;
  counters.Add("ssd.border_errors");
  Log(LogLevel::kError,
      absl::StrCat("ssd: that spaces were cleared is not on disk yet and is tried again; a restart "
                   "before would bring back what the SSD has of them: ",
                   std::string(saved.message())));
  tier_bell.Ring();
  return false;
}

absl::Status Core::TryTierAgain() {
  if (store == nullptr) {
    const absl::Status status = OpenLate();
    if (!status.ok()) SayClosed(status);
    return status;
  }
  const absl::Status saved = store->SaveBorders();
  border_waits = !saved.ok();
  if (saved.ok()) Log(LogLevel::kInfo, "ssd: that spaces were cleared is on disk now");
  if (!saved.ok()) counters.Add("ssd.border_errors");
  return saved;
}

void Core::TierLoop() {
  std::chrono::milliseconds wait = options.ssd_retry;
  const auto waits = [this] { return store == nullptr || !store->BordersSaved(); };
  while (tier_bell.Wait(waits() ? std::optional(wait) : std::nullopt)) {
    if (!waits()) continue;
    wait = TryTierAgain().ok() ? options.ssd_retry : std::min(2 * wait, kLongestRetry);
  }
  if (store != nullptr && waits()) TryTierAgain().IgnoreError();  // the last time
}

// Databases that were moved aside give way to what can be used.
bool Core::RemoveDamaged() {
  const absl::Status removed = store->RemoveDamaged();
  if (removed.ok()) counters.Add("ssd.damaged_removed");
  if (!removed.ok() && !absl::IsNotFound(removed)) {
    Log(LogLevel::kWarning, absl::StrCat("ssd: ", std::string(removed.message())));
  }
  return removed.ok();
}

}  // namespace prefixd::cache
