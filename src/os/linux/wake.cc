#include "os/wake.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cstdint>

namespace prefixd::os {

Wake::Wake() : read_end_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), write_end_(read_end_) {}

void Wake::Set() const { eventfd_write(write_end_, 1); }

void Wake::Clear() const {
  eventfd_t count = 0;
  eventfd_read(read_end_, &count);
}

void PollFor(std::span<pollfd> descriptors, std::chrono::nanoseconds limit) {
  const int64_t ns = std::max<int64_t>(limit.count(), 0);
  const timespec timeout{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  ppoll(descriptors.data(), descriptors.size(), &timeout, nullptr);
}

}  // namespace prefixd::os
