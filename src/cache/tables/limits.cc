#include "cache/tables/limits.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/size.h"

namespace prefixd::cache {
namespace {

constexpr uint32_t kLimitsVersion = 2;  // 1: without the floor on SSD

}  // namespace

std::string EncodeLimits(const block::SpaceLimits& limits) {
  base::ByteWriter writer;
  writer.Fixed(kLimitsVersion);
  for (const uint64_t value : {limits.ram_floor_bytes, limits.ram_ceiling_bytes,
                               limits.ssd_ceiling_bytes, limits.ttl_ms, limits.ssd_floor_bytes}) {
    writer.Fixed(value);
  }
  return std::string(writer.bytes());
}

block::SpaceLimits DecodeLimits(const std::string& text) {
  base::ByteReader reader(base::AsBytes(text));
  const auto version = reader.Fixed<uint32_t>();
  if (version == 0 || version > kLimitsVersion) return {};
  block::SpaceLimits limits;
  for (uint64_t* value : {&limits.ram_floor_bytes, &limits.ram_ceiling_bytes,
                          &limits.ssd_ceiling_bytes, &limits.ttl_ms}) {
    *value = reader.Fixed<uint64_t>();
  }
  if (version >= 2) limits.ssd_floor_bytes = reader.Fixed<uint64_t>();
  return limits;
}

absl::Status CheckFloor(const TierFloor& floor) {
  if (floor.ceiling_bytes > 0 && floor.floor_bytes > floor.ceiling_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "limits: a floor of ", base::FormatBytes(floor.floor_bytes), " in ", floor.tier,
        " is above the ceiling of ", base::FormatBytes(floor.ceiling_bytes)));
  }
  const uint64_t most = MostFloorBytes(floor.tier_bytes);
  if (floor.floor_bytes == 0) return absl::OkStatus();
  if (floor.floor_bytes <= most && floor.others_bytes <= most - floor.floor_bytes) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "limits: a floor of ", base::FormatBytes(floor.floor_bytes), " beside ",
      base::FormatBytes(floor.others_bytes), " of other spaces, all floors together may be ",
      base::FormatBytes(most), " (80 % of the ", floor.tier, " tier)"));
}

absl::Status CheckFloorsFit(const char* tier, uint64_t floor_bytes, uint64_t tier_bytes) {
  const uint64_t most = MostFloorBytes(tier_bytes);
  if (floor_bytes <= most) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "budget: spaces have floors of ", base::FormatBytes(floor_bytes), " in ", tier,
      ", with that budget they may be ", base::FormatBytes(most), " (80 % of the tier)"));
}

void LimitedSpaces::Set(block::SpaceHandle space, const block::SpaceLimits& limits, int64_t now_us,
                        int64_t stamp) {
  base::MutexLock lock(mutex_);
  if (limits == block::SpaceLimits{}) {
    limits_.erase(space);
  } else {
    limits_[space] = limits;
  }
  // What is there now counts as used now: its real age is not known.
  marks_.push_back({now_us, stamp});
  last_use_us_ = now_us;
  next_us_ = limits_.empty() ? kNever : now_us;
  if (limits_.empty()) marks_.clear();
}

bool LimitedSpaces::IsDue(int64_t now_us) {
  if (now_us >= next_us_) return true;
  last_use_us_ = now_us;
  return false;
}

// A sixteenth of the shortest time, so that nothing lives much longer than it; not so often that
// the marks of the longest time are many.
int64_t LimitedSpaces::PeriodMicros() const {
  int64_t shortest = int64_t{16'000'000}, longest = 0;
  for (const auto& [space, limits] : limits_) {
    if (limits.ttl_ms == 0) continue;
    const auto ttl_us = static_cast<int64_t>(limits.ttl_ms) * 1000;
    shortest = std::min(shortest, ttl_us);
    longest = std::max(longest, ttl_us);
  }
  return std::max({int64_t{1000}, shortest / 16, longest / 2048});
}

int64_t LimitedSpaces::StampAt(int64_t us) const {
  const auto after = std::ranges::upper_bound(marks_, us, {}, &Mark::at_us);
  return after == marks_.begin() ? 0 : std::prev(after)->stamp + 1;
}

std::vector<LimitedSpaces::Due> LimitedSpaces::Take(int64_t now_us, int64_t stamp) {
  base::MutexLock lock(mutex_);
  marks_.push_back({last_use_us_.exchange(now_us), stamp});
  std::vector<Due> due;
  int64_t longest = 0;
  for (const auto& [space, limits] : limits_) {
    const auto ttl_us = static_cast<int64_t>(limits.ttl_ms) * 1000;
    longest = std::max(longest, ttl_us);
    due.push_back({space, limits, ttl_us == 0 ? 0 : StampAt(now_us - ttl_us)});
  }
  while (marks_.size() > 1 && marks_[1].at_us <= now_us - longest) marks_.pop_front();
  if (next_us_ != kNever) next_us_ = now_us + PeriodMicros();
  return due;
}

block::SpaceLimits LimitedSpaces::Of(block::SpaceHandle space) const {
  base::MutexLock lock(mutex_);
  const auto found = limits_.find(space);
  return found == limits_.end() ? block::SpaceLimits{} : found->second;
}

LimitedSpaces::Floors LimitedSpaces::FloorsBut(block::SpaceHandle space) const {
  base::MutexLock lock(mutex_);
  Floors floors;
  for (const auto& [other, limits] : limits_) {
    if (other == space) continue;
    floors.ram_bytes += limits.ram_floor_bytes;
    floors.ssd_bytes += limits.ssd_floor_bytes;
  }
  return floors;
}

}  // namespace prefixd::cache
