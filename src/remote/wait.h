// poll() with a deadline of the steady clock.
#pragma once
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "base/mutex.h"
#include "os/wake.h"

namespace prefixd::remote {

// Waits until one is ready or the deadline has passed; a signal may end it earlier.
inline void PollUntil(std::span<pollfd> fds, base::Deadline deadline) {
  const std::chrono::nanoseconds left = deadline - std::chrono::steady_clock::now();
  os::PollFor(fds, std::min<std::chrono::nanoseconds>(left, std::chrono::minutes(1)));
}

}  // namespace prefixd::remote
