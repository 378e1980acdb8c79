#include "cache/store/tier.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/secret_file.h"
#include "base/size.h"
#include "base/status.h"
#include "ssd/store_directory.h"

namespace prefixd::cache {
namespace {

constexpr std::chrono::milliseconds kLongestRetry(60'000);

// Nothing that time mends: another daemon, somebody else's directory, a later format.
bool IsRefusal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status) ||
         absl::IsInvalidArgument(status);
}

// Logs the first.
ssd::OnUnknownFormat CountUnknownFormats(Context* context) {
  return [context, said = std::make_shared<std::atomic<bool>>(false)](const std::string& what) {
    context->counters.Add("ssd.unknown_formats");
    if (said->exchange(true)) return;
    context->Log(LogLevel::kWarning,
                 absl::StrCat("ssd: ", what,
                              ": such files are left to RocksDB, which reads them more slowly; "
                              "counter ssd.unknown_formats"));
  };
}

}  // namespace

// A key that cannot be read now is no reason to throw away what was made with it. One that could
// not be read at the start is not the key of the pages in RAM.
absl::Status Tier::CheckKey() const {
  const auto key = base::ReadSecret(context_->KeyPlaces().store);
  if (!key.ok() && !absl::IsDataLoss(key.status())) {
    // A directory of another user is no disk that fails: no later try opens it.
    PREFIXD_RETURN_IF_ERROR(ssd::CheckOurs(context_->options.directory));
    return absl::UnavailableError(key.status().message());
  }
  if (key.ok() && key->has_value() && **key != context_->hash_key) {
    return absl::UnavailableError(
        absl::StrCat(context_->options.directory,
                     " has another key of block hashes than was chosen without it: a restart "
                     "takes it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ssd::SegmentStore>> Tier::OpenStore(const base::LockWait& wait) {
  // The disk may have been mounted since.
  std::error_code ignored;
  std::filesystem::create_directories(
      std::filesystem::path(context_->options.directory).parent_path(), ignored);
  PREFIXD_RETURN_IF_ERROR(CheckKey());
  PREFIXD_ASSIGN_OR_RETURN(
      std::unique_ptr<ssd::SegmentStore> opened,
      ssd::SegmentStore::Open({.directory = context_->options.directory,
                               .direct_io = context_->options.direct_io,
                               .block_cache_bytes = context_->shares.ssd_bytes / 4,
                               .files = context_->options.ssd_files,
                               .open_free_bytes = context_->options.ssd_open_free_bytes,
                               .lock_wait = wait,
                               .key_id = IdOf(context_->hash_key),
                               .on_unknown_format = CountUnknownFormats(context_),
                               .reads_directly = context_->options.ssd_reads_directly}));
  // Before anything is stored: what is made with a key that is lost can never be read.
  PREFIXD_RETURN_IF_ERROR(KeepHashKey(context_->KeyPlaces().store, context_->hash_key));
  SayFindings(*opened);
  return opened;
}

void Tier::SayFindings(const ssd::SegmentStore& opened) {
  const ssd::SegmentStore::Findings& found = opened.findings();
  if (!found.reclaimed_why.empty()) {
    context_->counters.Add("ssd.reclaimed");
    context_->Log(LogLevel::kWarning, absl::StrCat("ssd: what was in ", context_->options.directory,
                                                   " is thrown away: ", found.reclaimed_why));
  }
  if (!found.moved_aside.empty()) {
    context_->counters.Add("ssd.moved_aside");
    const ssd::SegmentStore::Kept kept = opened.DamagedCopies();
    context_->Log(LogLevel::kError,
                  absl::StrCat("ssd: the store was damaged and is now in ", found.moved_aside,
                               ", a new one is begun; ", kept.count, " such copies take ",
                               base::FormatBytes(kept.bytes),
                               " of the tier until it needs them: ", found.moved_why));
  }
  if (!found.cleared_why.empty()) {
    context_->counters.Add("ssd.borders_lost");
    context_->Log(LogLevel::kError,
                  absl::StrCat("ssd: nothing of what is there is served: ", found.cleared_why));
  }
  for (const std::string& note : found.notes) {
    context_->counters.Add("ssd.metadata_damaged");
    context_->Log(LogLevel::kWarning, "ssd: " + note);
  }
  if (context_->options.direct_io && !opened.direct_io()) {
    context_->counters.Add("ssd.buffered");
    context_->Log(LogLevel::kWarning,
                  absl::StrCat("ssd: the filesystem of ", context_->options.directory,
                               " refuses direct I/O: buffered, the page cache told to let go"));
  }
}

// What was cleared while there was no store is all that it has of these spaces.
absl::Status Tier::AddWaitingBorders(ssd::SegmentStore* opened) {
  base::MutexLock lock(clears_mutex_);
  if (!clears_.all && clears_.spaces.empty()) return absl::OkStatus();
  ssd::ClearedBorders borders{.all = clears_.all ? opened->last_sequence() : 0};
  for (const block::SpaceId& space : clears_.spaces) {
    borders.spaces[space] = opened->last_sequence();
  }
  PREFIXD_RETURN_IF_ERROR(opened->AddBorders(borders));
  clears_ = {};
  border_waits_ = false;
  return absl::OkStatus();
}

// The spiller writes spaces that are here and not there with their first blocks.
void Tier::LoadSpaces(const Entries& identities) {
  for (const auto& [key, encoded] : identities) {
    const absl::StatusOr<block::SpaceIdentity> identity = block::DecodeSpaceIdentity(encoded);
    if (identity.ok()) {
      spaces_->AddEarlier(*identity, true);
    } else {
      context_->Log(LogLevel::kWarning,
                    absl::StrCat("recover: ", key, " is not readable, its blocks are left out"));
    }
  }
  // Uses from now on are later than all that was recorded: stamps come slower than nanoseconds.
  // Where the clock went back, loading the records catches up.
  context_->index->StampFrom(context_->options.clock->UnixMicros() * 1000);
}

void Tier::LoadLimits(const Entries& entries) {
  std::map<std::string, block::SpaceLimits> by_id;
  for (const auto& [key, text] : entries) {
    by_id[key.substr(sizeof(kLimitsKey) - 1)] = DecodeLimits(text);
  }
  for (const SpacePtr& space : spaces_->All()) {
    const auto found = by_id.find(base::ToHex(space->id));
    if (found == by_id.end() || limited_->Of(space->handle) != block::SpaceLimits{}) continue;
    context_->index->SetSpaceLimits(space->handle, found->second);
    limited_->Set(space->handle, found->second, context_->Now(), context_->index->Counts().stamp);
  }
}

absl::Status Tier::Take(std::unique_ptr<ssd::SegmentStore> opened) {
  PREFIXD_RETURN_IF_ERROR(AddWaitingBorders(opened.get()));
  PREFIXD_ASSIGN_OR_RETURN(const auto spaces, opened->ListMeta("space/"));
  PREFIXD_ASSIGN_OR_RETURN(const auto limits, opened->ListMeta(kLimitsKey));
  context_->store.Set(std::move(opened));
  LoadSpaces(spaces);
  LoadLimits(limits);
  segments_->StartBudget();
  return absl::OkStatus();
}

absl::Status Tier::Start() {
  absl::StatusOr<std::unique_ptr<ssd::SegmentStore>> opened = OpenStore(context_->LockWait());
  absl::Status status = opened.status();
  if (opened.ok()) {
    base::MutexLock lock(segments_->mutex);
    status = Take(*std::move(opened));
  }
  if (status.ok() || IsRefusal(status)) return status;
  SayClosed(status);
  return absl::OkStatus();
}

void Tier::SayClosed(const absl::Status& status) {
  context_->counters.Add("ssd.open_failed");
  const std::string why(status.message());
  if (std::exchange(closed_why_, why) == why) return;
  context_->Log(
      LogLevel::kError,
      absl::StrCat("ssd: the tier cannot be opened, serving goes on from RAM alone and it is tried "
                   "again: ",
                   why));
}

absl::Status Tier::OpenLate(const LoadLate& load_late) {
  PREFIXD_ASSIGN_OR_RETURN(
      std::unique_ptr<ssd::SegmentStore> opened,
      OpenStore({.limit = std::min(context_->options.lock_wait, std::chrono::milliseconds(100))}));
  const auto take = [this, &opened]()
                        PREFIXD_REQUIRES(segments_->mutex) { return Take(std::move(opened)); };
  PREFIXD_RETURN_IF_ERROR(load_late(take));
  context_->counters.Add("ssd.opened_late");
  context_->Log(LogLevel::kInfo,
                absl::StrCat("ssd: the tier in ", context_->options.directory, " is open now"));
  spiller_->LetWork();
  demand_->Ask();
  return absl::OkStatus();
}

bool Tier::SetBorders(std::span<const block::SpaceId> spaces, bool all) {
  if (!context_->has_ssd()) return true;
  if (context_->store == nullptr) {
    border_waits_ = true;
    base::MutexLock lock(clears_mutex_);
    clears_.all = clears_.all || all;
    clears_.spaces.insert(spaces.begin(), spaces.end());
    return false;
  }
  ssd::ClearedBorders borders{.all = all ? context_->store->last_sequence() : 0};
  for (const block::SpaceId& space : spaces)
    borders.spaces[space] = context_->store->last_sequence();
  const absl::Status saved = context_->store->AddBorders(borders);
  border_waits_ = !saved.ok();
  if (saved.ok()) return true;
  context_->counters.Add("ssd.border_errors");
  context_->Log(
      LogLevel::kError,
      absl::StrCat("ssd: that spaces were cleared is not on disk yet and is tried again; a restart "
                   "before would bring back what the SSD has of them: ",
                   std::string(saved.message())));
  work_.Notify();
  return false;
}

absl::Status Tier::Step(const LoadLate& load_late) {
  if (!HasWork()) return absl::OkStatus();
  if (context_->store == nullptr) {
    const absl::Status status = OpenLate(load_late);
    if (!status.ok()) SayClosed(status);
    return status;
  }
  const absl::Status saved = context_->store->SaveBorders();
  border_waits_ = !saved.ok();
  if (saved.ok()) context_->Log(LogLevel::kInfo, "ssd: that spaces were cleared is on disk now");
  if (!saved.ok()) context_->counters.Add("ssd.border_errors");
  return saved;
}

void Tier::Run(const LoadLate& load_late) {
  const std::chrono::milliseconds first = context_->options.ssd_retry;
  std::chrono::milliseconds wait = first;
  while (work_.Wait(HasWork() ? std::optional(wait) : std::nullopt)) {
    if (!HasWork()) continue;
    wait = Step(load_late).ok() ? first : std::min(2 * wait, kLongestRetry);
  }
  if (context_->store != nullptr) Step(load_late).IgnoreError();  // borders, for the last time
}

}  // namespace prefixd::cache
