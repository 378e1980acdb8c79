// Load: the tree from what an earlier daemon left, while requests are served.
//
// Until it is whole the segment mutex is held: nothing is written, dropped or cleared under it.
#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {

absl::Status Core::LoadIndex(Legacy* legacy) {
  absl::Status status;
  if (store != nullptr) {
    base::MutexLock segment(segment_mutex);
    Log(LogLevel::kInfo,
        absl::StrCat("index: loading from ", store->Segments().size(), " segments"));
    status = Recover();
    // Its blocks may continue those of the SSD, so nothing else is adopted without them.
    if (!load_stop) Adopt(legacy);
  } else {
    Adopt(legacy);
  }
  counters.Time("start", static_cast<uint64_t>(Now() - started_us));
  EndLoading();
  return status;
}

void Core::BeginLoading() {
  index->BeginLoading();
  base::MutexLock lock(load_mutex);
  loading = true;
}

void Core::EndLoading() {
  index->PruneHoles();
  promote_wake.NotifyAll();
  base::MutexLock lock(load_mutex);
  loading = false;
  load_done.NotifyAll();
}

void Core::SayNotWhole(const absl::Status& status) {
  if (status.ok() || load_stop) return;
  counters.Add("recover.failed");
  Log(LogLevel::kError, absl::StrCat("ssd: the index is not whole, what is missing is computed "
                                     "again: ",
                                     std::string(status.message())));
}

bool Core::WaitLoaded(base::Deadline deadline) {
  base::MutexLock lock(load_mutex);
  while (loading) {
    if (!load_done.WaitUntil(load_mutex, deadline)) return !loading;
  }
  return true;
}

absl::Status Core::StartLoading(std::shared_ptr<Legacy> legacy) {
  BeginLoading();
  if (store == nullptr || !options.open_within.has_value()) return LoadIndex(legacy.get());
  threads.emplace_back([this, legacy] { SayNotWhole(LoadIndex(legacy.get())); });
  if (!WaitLoaded(std::chrono::steady_clock::now() + *options.open_within)) {
    counters.Add("index.served_while_loading");
    Log(LogLevel::kInfo, "index: loading on while requests are served");
  }
  return absl::OkStatus();
}

}  // namespace prefixd::cache
