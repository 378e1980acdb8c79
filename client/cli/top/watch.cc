#include "client/cli/top/watch.h"

#include <utility>

namespace prefixd::cli {

Watch::Watch(Ask ask, std::chrono::milliseconds interval)
    : ask_(std::move(ask)), interval_(interval), thread_([this] { Run(); }) {}

Watch::~Watch() {
  {
    base::MutexLock lock(mutex_);
    ends_ = true;
    ended_.NotifyAll();
  }
  thread_.join();
}

bool Watch::Tell(TopView* view) {
  base::MutexLock lock(mutex_);
  const std::chrono::duration<double> failed = Clock::now() - failed_;
  view->failed_s = failure_.empty() ? 0 : failed.count();
  if (!news_) return !failure_.empty();
  news_ = false;
  view->latest = latest_;
  view->history = history_;
  view->failure = failure_;
  return true;
}

void Watch::Run() {
  Clock::time_point next = Clock::now();
  for (;;) {
    Learn(ask_());
    // A daemon that answers late is not asked twice in a row to make up for it.
    next = std::max(next + interval_, Clock::now());
    base::MutexLock lock(mutex_);
    while (!ends_ && ended_.WaitUntil(mutex_, next)) {
    }
    if (ends_) return;
  }
}

void Watch::Learn(absl::StatusOr<Sample> sample) {
  base::MutexLock lock(mutex_);
  news_ = true;
  if (!sample.ok()) {
    if (failure_.empty()) failed_ = Clock::now();
    failure_ = std::string(sample.status().message());
    if (failure_.empty()) failure_ = "no reason given";
    return;
  }
  failure_.clear();
  history_.Add(sample->at.count(), sample->stats);
  latest_ = *std::move(sample);
}

}  // namespace prefixd::cli
