// The load under which prefixd and its workers are killed: a small universe of forked sequences
// that does not fit into the RAM budget, so that workers write, read, spill and evict at once.
//
// A worker process counts into shared memory, which outlives its SIGKILL.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "tests/crash/forked_sequences.h"

namespace prefixd::bench {

const Geometry& CrashGeometry();
std::vector<ForkedName> CrashUniverse();

struct CrashCounts {
  std::atomic<uint64_t> operations;        // sequences looked up, completed and committed
  std::atomic<uint64_t> requested_tokens;  // in look-ups
  std::atomic<uint64_t> cached_tokens;     // that came from the cache and were compared
  std::atomic<uint64_t> in_place_tokens;   // of them: read in the daemon's memory
  std::atomic<uint64_t> committed_tokens;
  std::atomic<uint64_t> refused;   // commits and look-ups that ended in an error
  std::atomic<uint64_t> wrong;     // comparisons that failed
  std::atomic<uint64_t> outlived;  // held sequences read again under a later daemon
  char first_wrong[200];
};

// A worker process: this program with kCrashWorker and its plan as arguments. Returns its exit
// code.
inline constexpr char kCrashWorker[] = "--crash-worker";
int RunCrashWorker(const std::string& plan);

// CrashCounts in a file that parent and workers map.
class SharedCounts {
 public:
  static absl::StatusOr<SharedCounts> Map(const std::string& path);
  CrashCounts* operator->() const { return counts_.get(); }
  CrashCounts& operator*() const { return *counts_; }

 private:
  struct Unmap {
    void operator()(CrashCounts* counts) const;
  };
  explicit SharedCounts(CrashCounts* counts) : counts_(counts) {}
  std::unique_ptr<CrashCounts, Unmap> counts_;
};

}  // namespace prefixd::bench
