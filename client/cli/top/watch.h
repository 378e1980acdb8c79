// Asks a daemon once an interval, in a thread of its own, so that keys are answered while the
// daemon is not.
#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "client/cli/top/frame.h"

namespace prefixd::cli {

class Watch {
 public:
  using Ask = std::function<absl::StatusOr<Sample>()>;
  // Calls `ask` until it is destroyed, which waits for the call that is under way.
  Watch(Ask ask, std::chrono::milliseconds interval);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Writes into `view` what is known now. Returns whether that is news since the call before.
  bool Tell(TopView* view);

 private:
  using Clock = std::chrono::steady_clock;
  void Run();
  void Learn(absl::StatusOr<Sample> sample);

  const Ask ask_;
  const std::chrono::milliseconds interval_;
  base::Mutex mutex_;
  base::CondVar ended_;
  bool ends_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool news_ PREFIXD_GUARDED_BY(mutex_) = false;
  std::optional<Sample> latest_ PREFIXD_GUARDED_BY(mutex_);
  History history_ PREFIXD_GUARDED_BY(mutex_);
  std::string failure_ PREFIXD_GUARDED_BY(mutex_);
  Clock::time_point failed_ PREFIXD_GUARDED_BY(mutex_);  // since when; if there is a failure
  std::thread thread_;                                   // last: it uses what is above
};

}  // namespace prefixd::cli
