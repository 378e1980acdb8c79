// The pages of a lease, wherever they are: in the daemon's arena, or copied into this process.
//
// Thread-safe, except for what the sequence's own thread changes. A page that turns out bad makes
// the whole lease shorter, never wrong.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "attachment.h"
#include "base/mutex.h"
#include "block/ids.h"

namespace prefixd::client {

inline constexpr uint64_t kPrivate = ~uint64_t{0};

struct CachedPage {
  const std::byte* bytes = nullptr;  // null for a sliding block that the lease does not need
  uint64_t arena_offset = kPrivate;
  uint32_t page_tokens = 0;  // token slots the bytes were laid out for
  uint32_t rung = 0;
};

class CachedPages {
 public:
  virtual ~CachedPages() = default;

  // Waits for the group's pages, until the load's deadline or `until`, whichever is first. If that
  // passes, the load ends without the pages that are missing. Returns usable_tokens().
  virtual uint32_t Wait(uint32_t group, base::Deadline until) = 0;
  // Tokens that are here, or still expected, in every group. Only shrinks.
  virtual uint32_t usable_tokens() const = 0;
  // Returns the page of the block; of a state group the snapshot at the lease's end, whatever the
  // block. Requires: Wait() has returned for the group and the block, whose first token is <
  // usable_tokens().
  virtual CachedPage page(uint32_t group, uint32_t block) const = 0;
  // Ends the load without the pages that are missing, and lets waiters go.
  virtual void Cancel() = 0;
  // Time from asking to the last byte; 0 until then, and for a load that fell short.
  virtual std::chrono::microseconds duration() const = 0;
};

// What a load knows of its lease.
struct LoadPlan {
  Session session;
  block::LeaseId lease;
  uint32_t block_tokens = 0;
  uint32_t tokens = 0;
  base::Deadline asked;  // when the lookup began
  base::Deadline deadline;
};

// Which groups of a load are done, and how many tokens are usable so far. Guarded by its owner.
class LoadProgress {
 public:
  // `all_or_nothing`: windows and states are those of the last token, so fewer tokens are worth 0.
  LoadProgress(size_t groups, uint32_t tokens, bool all_or_nothing)
      : done_(groups, false),
        open_(groups),
        tokens_(tokens),
        usable_tokens_(tokens),
        all_or_nothing_(all_or_nothing) {}

  bool done(uint32_t group) const { return done_[group]; }
  bool closed() const { return closed_; }
  size_t open_groups() const { return open_; }
  size_t groups() const { return done_.size(); }
  uint32_t usable_tokens() const { return usable_tokens_; }
  std::chrono::microseconds duration() const { return duration_; }

  void Close(uint32_t group, uint32_t usable_tokens, base::Deadline asked);
  void Shorten(uint32_t usable_tokens);
  // Ends the load. If a group is not done, nothing may be read.
  void CloseAll();

 private:
  std::vector<bool> done_;
  size_t open_;
  const uint32_t tokens_;
  uint32_t usable_tokens_;
  const bool all_or_nothing_;
  bool closed_ = false;
  std::chrono::microseconds duration_{0};
};

}  // namespace prefixd::client
