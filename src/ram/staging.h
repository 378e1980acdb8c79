// Staging: memory that one worker writes and the daemon reads, until it is committed.
//
// A session's staging is memory of a fixed size, all of it there before it is handed over; whatever
// the worker does to it, the daemon gets no signal (os/memory.h). All of it comes from one budgeted
// pool. Only the worker writes; the daemon reads each byte once and trusts none of it.
//
// A worker may go on reading its own pages there after its session ended, so the owner of a Staging
// keeps it, within the budget, until held() is false. A worker that unlocks it and keeps it mapped
// reads zeros afterwards, because a punched hole gives the memory back. What such a worker writes
// from then on is memory that the kernel charges to that worker.
//
// Thread-safe.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

#include "os/memory.h"

namespace prefixd::ram {

class StagingPool;

class Staging {
 public:
  // Gives the memory back to the machine, whoever has it mapped, and its bytes to the pool.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  uint64_t bytes() const { return bytes_; }
  // Returns the bytes from `offset` on, which the worker may be writing. They stand in `place` or,
  // without a copy, in the memory itself. Null if the worker made the memory shorter than this.
  // Requires: offset + place.size() <= bytes().
  const std::byte* Read(uint64_t offset, std::span<std::byte> place) const {
    return memory_.Read(offset, place.size(), place.data());
  }
  // Opens a descriptor to pass on; the caller owns it. It is an open file of its own, which holds a
  // lock for as long as it is open or mapped anywhere.
  // Called once.
  absl::StatusOr<int> OpenForWorker();
  // Returns whether somebody has what OpenForWorker returned open or mapped.
  bool held() const { return memory_.IsHeld(); }

 private:
  friend class StagingPool;
  Staging(StagingPool* pool, uint64_t bytes) : pool_(pool), bytes_(bytes) {}
  StagingPool* const pool_;
  const uint64_t bytes_;  // of the pool's figure
  os::LentMemory memory_;
};

class StagingPool {
 public:
  // `folder`: as for os::LentMemory.
  explicit StagingPool(uint64_t budget_bytes, std::string folder = "")
      : budget_(budget_bytes), folder_(std::move(folder)) {}

  // Grants `wanted_bytes`, rounded up to 4 KiB, but at most half of what the pool has left, so that
  // whoever comes next finds some, and at most 16 MiB or an eighth of the budget, whichever is
  // more. ResourceExhausted if that is less than a 64th of the budget, or the kernel gives no
  // memory: the session then sends its pages by Put.
  absl::StatusOr<std::unique_ptr<Staging>> Grant(uint64_t wanted_bytes);
  uint64_t budget_bytes() const { return budget_; }
  uint64_t granted_bytes() const { return granted_.load(); }
  uint64_t left_bytes() const { return budget_ - granted_.load(); }

 private:
  friend class Staging;
  const uint64_t budget_;
  const std::string folder_;
  std::atomic<uint64_t> granted_{0};
};

}  // namespace prefixd::ram
