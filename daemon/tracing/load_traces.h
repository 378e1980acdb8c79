// The span of a load: from the answer of a traced Acquire that leases pages on SSD, until the last
// of its groups is readable. It outlives the call, so it ends after its parent.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "base/mutex.h"
#include "cache/cache.h"
#include "daemon/tracing/span.h"

namespace prefixd::daemon {

// Thread-safe. An Acquire that leases only what is in RAM takes no lock here, and without a traced
// Acquire or load under way Note() looks at two atomics.
class LoadTraces {
 public:
  static constexpr size_t kMostLoads = 1024;  // under way; the oldest is forgotten for a new one
  static constexpr size_t kMostEarly = 1024;  // events that are kept for an Acquire that answers

  // `take` gets each span that is done; it must not wait.
  explicit LoadTraces(std::function<void(Spans)> take) : take_(std::move(take)) {}

  // Between both, events are kept: they may come before Acquire has returned.
  void AcquireBegins() { ++acquires_; }
  void AcquireEnds() { --acquires_; }
  // `span` begins at `begin` and has no end yet. `groups`: those with pages that are not readable
  // yet; not empty.
  void Begin(block::LeaseId lease, std::vector<uint32_t> groups, TraceTime begin, Span span)
      PREFIXD_EXCLUDES(mutex_);
  // Notes an event of any session.
  void Note(const cache::SessionEvent& event) PREFIXD_EXCLUDES(mutex_);

 private:
  struct Event {
    block::LeaseId lease;
    uint32_t group = 0;
    bool failed = false;
    TraceTime at{};
  };
  struct Load {
    block::LeaseId lease;
    std::vector<uint32_t> groups;  // that are not readable yet
    TraceTime begin{};
    Span span;
  };
  // Returns the load's span once it is done, else nothing.
  Spans Apply(const Event& event) PREFIXD_REQUIRES(mutex_);

  const std::function<void(Spans)> take_;
  std::atomic<size_t> acquires_{0};   // traced ones that run
  std::atomic<size_t> under_way_{0};  // loads
  base::Mutex mutex_;
  std::deque<Load> loads_ PREFIXD_GUARDED_BY(mutex_);   // oldest first
  std::deque<Event> early_ PREFIXD_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace prefixd::daemon
