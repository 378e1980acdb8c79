#include "device_pins.h"

#include <algorithm>
#include <utility>

namespace prefixd::client {
namespace {

// True if a daemon may not have heard it, and this session or the next may yet.
bool IsWorthAnotherTry(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status) || absl::IsResourceExhausted(status);
}

}  // namespace

void DevicePins::Begin(Send send) {
  base::MutexLock lock(mutex_);
  send_ = std::move(send);
  told_ = std::ranges::none_of(pins_, [](uint32_t devices) { return devices > 0; });
  SendUntold();
}

bool DevicePins::Tell(uint64_t slab, uint64_t slabs, bool pinned) {
  base::MutexLock lock(mutex_);
  if (slab > slabs_ || slabs > slabs_ - slab) return false;
  for (uint64_t i = slab; i < slab + slabs; ++i) Count(i, pinned);
  return SendUntold();
}

int DevicePins::TellTo(void* device_pins, uint64_t slab, uint64_t slabs, int pinned) {
  return static_cast<DevicePins*>(device_pins)->Tell(slab, slabs, pinned != 0) ? 1 : 0;
}

void DevicePins::Count(uint64_t slab, bool pinned) {
  if (pinned) {
    pins_.resize(std::max<size_t>(pins_.size(), slab + 1));
    if (pins_[slab]++ == 0) told_ = false;
  } else if (slab < pins_.size() && pins_[slab] > 0) {
    if (--pins_[slab] == 0) told_ = false;
  }
}

bool DevicePins::SendUntold() {
  if (!told_ && send_ != nullptr) told_ = !IsWorthAnotherTry(send_(Bits()));
  return told_;
}

std::string DevicePins::Bits() const {
  std::string bits((pins_.size() + 7) / 8, '\0');
  for (size_t i = 0; i < pins_.size(); ++i) {
    if (pins_[i] > 0) bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << i % 8);
  }
  return bits;
}

}  // namespace prefixd::client
