// What this process has pinned for its devices of one mapping of the daemon's memory, and whether
// the daemon knows: it waits for them when it gives memory back.
//
// Thread-safe. One call at a time, so that the daemon hears of changes in their order: who tells,
// or begins a session, may wait for another's call. A call takes at most 1 s.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "base/mutex.h"

namespace prefixd::client {

class DevicePins {
 public:
  // Sends DevicePinsRequest.slabs to a session.
  using Send = std::function<absl::Status(const std::string& slabs)>;

  explicit DevicePins(uint64_t slabs) : slabs_(slabs) {}
  DevicePins(const DevicePins&) = delete;
  DevicePins& operator=(const DevicePins&) = delete;

  // A session maps this memory: it is told what is pinned now, and changes from now on.
  void Begin(Send send) PREFIXD_EXCLUDES(mutex_);
  // As ArenaView::tell.
  bool Tell(uint64_t slab, uint64_t slabs, bool pinned) PREFIXD_EXCLUDES(mutex_);
  static int TellTo(void* device_pins, uint64_t slab, uint64_t slabs, int pinned);

 private:
  void Count(uint64_t slab, bool pinned) PREFIXD_REQUIRES(mutex_);
  bool SendUntold() PREFIXD_REQUIRES(mutex_);
  std::string Bits() const PREFIXD_REQUIRES(mutex_);

  const uint64_t slabs_;
  base::Mutex mutex_;
  Send send_ PREFIXD_GUARDED_BY(mutex_);
  std::vector<uint32_t> pins_ PREFIXD_GUARDED_BY(mutex_);  // by slab: devices that have it pinned
  bool told_ PREFIXD_GUARDED_BY(mutex_) = true;            // the daemon knows them
};

}  // namespace prefixd::client
