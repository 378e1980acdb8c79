#include "os/wake.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>

namespace prefixd::os {

Wake::Wake() {
  int ends[2];
  if (pipe(ends) != 0) return;
  for (const int end : ends) {
    fcntl(end, F_SETFD, FD_CLOEXEC);
    fcntl(end, F_SETFL, O_NONBLOCK);
  }
  read_end_ = ends[0];
  write_end_ = ends[1];
}

// A pipe that is full is readable too.
void Wake::Set() const { (void)!write(write_end_, "", 1); }

void Wake::Clear() const {
  char bytes[64];
  while (read(read_end_, bytes, sizeof(bytes)) > 0) {
  }
}

void PollFor(std::span<pollfd> descriptors, std::chrono::nanoseconds limit) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
  poll(descriptors.data(), static_cast<nfds_t>(descriptors.size()),
       static_cast<int>(std::clamp<int64_t>(ms, 0, INT_MAX)));
}

}  // namespace prefixd::os
