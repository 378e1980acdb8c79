#include "os/process.h"

#include <algorithm>
#include <thread>

namespace prefixd::os {
namespace {

// Returns one of the signals if it is pending, and takes it. Else 0.
int TakePending(const sigset_t& signals) {
  sigset_t pending, both;
  if (sigpending(&pending) != 0) return 0;
  sigemptyset(&both);
  bool any = false;
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2}) {
    if (sigismember(&signals, signal) != 1 || sigismember(&pending, signal) != 1) continue;
    sigaddset(&both, signal);
    any = true;
  }
  int taken = 0;
  return any && sigwait(&both, &taken) == 0 ? taken : 0;
}

}  // namespace

int WaitForSignal(const sigset_t& signals, std::optional<std::chrono::milliseconds> limit) {
  if (!limit.has_value()) {
    int taken = 0;
    while (sigwait(&signals, &taken) != 0) {
    }
    return taken;
  }
  constexpr std::chrono::nanoseconds kLookEvery = std::chrono::milliseconds(10);
  const auto end = std::chrono::steady_clock::now() + *limit;
  for (;;) {
    if (const int taken = TakePending(signals); taken != 0) return taken;
    const std::chrono::nanoseconds left = end - std::chrono::steady_clock::now();
    if (left.count() <= 0) return 0;
    std::this_thread::sleep_for(std::min(left, kLookEvery));
  }
}

}  // namespace prefixd::os
