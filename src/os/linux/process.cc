#include "os/process.h"

#include <cerrno>

namespace prefixd::os {

int WaitForSignal(const sigset_t& signals, std::optional<std::chrono::milliseconds> limit) {
  const int64_t ms = limit.has_value() ? limit->count() : 0;
  const timespec timeout{.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1'000'000};
  for (;;) {
    const int signal = limit.has_value() ? sigtimedwait(&signals, nullptr, &timeout)
                                         : sigwaitinfo(&signals, nullptr);
    if (signal > 0) return signal;
    if (errno == EAGAIN) return 0;
  }
}

}  // namespace prefixd::os
