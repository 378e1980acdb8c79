// A memory cgroup of our own for a while, so that the kernel, not a sample, says what a daemon
// took. Version 2 where it hands memory down, else version 1.
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
  // Version 2: beside our own; version 1: in it. Unavailable, saying why of both, without root or
  // the memory controller.
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
  // Where a version has what.
  struct Files {
    const char *limit, *peak, *events;
  };
  static absl::StatusOr<std::unique_ptr<MemoryCgroup>> MakeV2(uint64_t limit_bytes);
  static absl::StatusOr<std::unique_ptr<MemoryCgroup>> MakeV1(uint64_t limit_bytes);
  static absl::StatusOr<std::unique_ptr<MemoryCgroup>> MakeIn(const std::string& parent,
                                                              const std::string& own,
                                                              const Files& files,
                                                              uint64_t limit_bytes);
  MemoryCgroup(std::string own, std::string folder, const Files& files)
      : own_(std::move(own)), folder_(std::move(folder)), files_(files) {}
  const std::string own_, folder_;
  const Files files_;
};

}  // namespace prefixd::bench
