#include "ram/staging.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "base/size.h"
#include "base/status.h"
#include "block/extent.h"

namespace prefixd::ram {
namespace {

// A worker that commits as fast as it can gains little from more: what it wrote is still in the
// CPU's cache when the daemon reads it.
constexpr uint64_t kEnoughBytes = uint64_t{16} << 20;
constexpr uint64_t kLeastShare = 64;  // of the budget; less is of no use to who wants more

absl::Status NoMemory(uint64_t bytes, const char* what) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "staging: ", base::FormatBytes(bytes), " wanted, ", what, " failed: ", strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Staging>> StagingPool::Grant(uint64_t wanted_bytes) {
  constexpr uint64_t kUnit = block::kExtentUnit;
  uint64_t granted = granted_.load(), bytes = 0;
  do {
    const uint64_t left = budget_ - granted;
    const uint64_t most = std::min(std::max(budget_ / 8, kEnoughBytes), left / 2) / kUnit * kUnit;
    bytes = std::min(base::AlignUp(std::min(wanted_bytes, most), kUnit), most);
    if (bytes == 0 || bytes < std::min(wanted_bytes, budget_ / kLeastShare)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("staging: ", base::FormatBytes(wanted_bytes), " wanted, ",
                       base::FormatBytes(granted), " of ", base::FormatBytes(budget_), " in use"));
    }
  } while (!granted_.compare_exchange_weak(granted, granted + bytes));
  std::unique_ptr<Staging> staging(new Staging(this, bytes));
  if (const char* const call = staging->memory_.Make("prefixd-staging", folder_, bytes)) {
    return NoMemory(bytes, call);
  }
  return staging;
}

Staging::~Staging() { pool_->granted_ -= bytes_; }

absl::StatusOr<int> Staging::OpenForWorker() {
  const int opened = memory_.OpenForBorrower();
  if (opened >= 0) return opened;
  return absl::ResourceExhaustedError(absl::StrCat("staging: no descriptor: ", strerror(errno)));
}

}  // namespace prefixd::ram
