// A memory cgroup (v2) of our own for a while, so that the kernel, not a sample, says what a daemon
// took.
//
// One thread.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace prefixd::bench {

class MemoryCgroup {
 public:
  // Beside our own. Unavailable, saying why, without root, v2 or the memory controller.
  static absl::StatusOr<std::unique_ptr<MemoryCgroup>> Make(uint64_t limit_bytes);
  ~MemoryCgroup();  // removed, once what ran in it has ended
  MemoryCgroup(const MemoryCgroup&) = delete;
  MemoryCgroup& operator=(const MemoryCgroup&) = delete;

  // Processes that this one starts from now on begin in it; until Leave().
  absl::Status Enter() const;
  absl::Status Leave() const;

  uint64_t peak_bytes() const;  // of everything in it, page cache too
  uint64_t oom_kills() const;

 private:
  MemoryCgroup(std::string own, std::string folder)
      : own_(std::move(own)), folder_(std::move(folder)) {}
  const std::string own_, folder_;
};

}  // namespace prefixd::bench
