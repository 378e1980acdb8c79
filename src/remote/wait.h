// poll() with a deadline of the steady clock.
#pragma once
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "base/mutex.h"

namespace prefixd::remote {

// Waits until one is ready or the deadline has passed; a signal may end it earlier.
inline void PollUntil(std::span<pollfd> fds, base::Deadline deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  const auto ns =
      std::clamp<int64_t>(std::chrono::nanoseconds(left).count(), 0, int64_t{60'000'000'000});
  const timespec timeout{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  ppoll(fds.data(), fds.size(), &timeout, nullptr);
}

}  // namespace prefixd::remote
