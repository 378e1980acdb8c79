#include "os/wake.h"

#include <unistd.h>

#include <utility>

namespace prefixd::os {

Wake::~Wake() { Close(); }

Wake::Wake(Wake&& other) noexcept
    : read_end_(std::exchange(other.read_end_, -1)),
      write_end_(std::exchange(other.write_end_, -1)) {}

Wake& Wake::operator=(Wake&& other) noexcept {
  std::swap(read_end_, other.read_end_);
  std::swap(write_end_, other.write_end_);
  return *this;
}

void Wake::Close() {
  if (write_end_ >= 0 && write_end_ != read_end_) close(write_end_);
  if (read_end_ >= 0) close(read_end_);
  read_end_ = write_end_ = -1;
}

}  // namespace prefixd::os
