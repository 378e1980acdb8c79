#include "daemon/heap_trim.h"

#include <algorithm>

#include "os/process.h"

namespace prefixd::daemon {
namespace {

// One stream of pages frees and takes up to 12 MiB.
constexpr int64_t kFreeInFlood = 16 << 20;
constexpr int64_t kFreeInASecond = 4 << 20;
constexpr std::chrono::seconds kSlowInterval(1), kFlood(5);
constexpr std::chrono::milliseconds kLook(100), kLookInFlood(20);

int64_t BeyondAllocated(const HeapUse& use) {
  return static_cast<int64_t>(use.resident_bytes) - static_cast<int64_t>(use.allocated_bytes);
}

}  // namespace

HeapUse HeapUseNow() {
  return {.resident_bytes = os::AnonymousBytes().value_or(0),
          .allocated_bytes = os::AllocatedBytes()};
}

bool HeapTrim::IsDue(const HeapUse& use, Time now) {
  const int64_t beyond = BeyondAllocated(use);
  kept_bytes_ = std::min(beyond, kept_bytes_.value_or(beyond));
  const int64_t free = beyond - *kept_bytes_;
  if (free > kFreeInFlood) {
    flood_until_ = now + kFlood;
    return true;
  }
  return free > kFreeInASecond && (!last_trim_.has_value() || now - *last_trim_ >= kSlowInterval);
}

void HeapTrim::Trimmed(const HeapUse& after, Time now) {
  kept_bytes_ = BeyondAllocated(after);
  last_trim_ = now;
}

std::chrono::milliseconds HeapTrim::NextLook(Time now) const {
  return flood_until_.has_value() && now < *flood_until_ ? kLookInFlood : kLook;
}

}  // namespace prefixd::daemon
