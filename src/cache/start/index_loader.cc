#include "cache/start/index_loader.h"

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "cache/start/legacy.h"

namespace prefixd::cache {

absl::Status IndexLoader::Load(Legacy* legacy) {
  absl::Status status;
  if (context_->store != nullptr) {
    base::MutexLock lock(segments_->mutex);
    context_->Log(LogLevel::kInfo, absl::StrCat("index: loading from ",
                                                context_->store->Segments().size(), " segments"));
    status = Recover();
    // Its blocks may continue those of the SSD, so nothing else is adopted without them.
    if (!stopped_) Adopt(legacy);
  } else {
    Adopt(legacy);
  }
  context_->counters.Time("start", static_cast<uint64_t>(context_->Now() - context_->started_us));
  End();
  return status;
}

void IndexLoader::Begin() {
  context_->index->BeginLoading();
  base::MutexLock lock(mutex_);
  loading_ = true;
}

void IndexLoader::End() {
  context_->index->PruneHoles();
  loader_->NotifyUnverified();
  base::MutexLock lock(mutex_);
  loading_ = false;
  loaded_.NotifyAll();
}

void IndexLoader::SayNotWhole(const absl::Status& status) {
  if (status.ok() || stopped_) return;
  context_->counters.Add("recover.failed");
  context_->Log(LogLevel::kError,
                absl::StrCat("ssd: the index is not whole, what is missing is computed again: ",
                             std::string(status.message())));
}

bool IndexLoader::WaitLoaded(base::Deadline deadline) {
  base::MutexLock lock(mutex_);
  while (loading_) {
    if (!loaded_.WaitUntil(mutex_, deadline)) return !loading_;
  }
  return true;
}

absl::Status IndexLoader::Start() {
  if (context_->arena->shared()) AdoptSpaces();
  const std::shared_ptr<Legacy> legacy = FindLegacy();
  Begin();
  const std::optional<std::chrono::milliseconds> within = context_->options.open_within;
  if (context_->store == nullptr || !within.has_value()) return Load(legacy.get());
  thread_ = std::thread([this, legacy] { SayNotWhole(Load(legacy.get())); });
  if (!WaitLoaded(std::chrono::steady_clock::now() + *within)) {
    context_->counters.Add("index.served_while_loading");
    context_->Log(LogLevel::kInfo, "index: loading on while requests are served");
  }
  return absl::OkStatus();
}

absl::Status IndexLoader::LoadLate(const std::function<absl::Status()>& take) {
  Begin();
  absl::Status status;
  {
    base::MutexLock lock(segments_->mutex);
    status = take();
    if (status.ok()) SayNotWhole(Recover());
  }
  End();
  return status;
}

void IndexLoader::Stop() {
  stopped_ = true;
  if (thread_.joinable()) thread_.join();
}

}  // namespace prefixd::cache
