#include "index/ages.h"

#include <algorithm>
#include <optional>

namespace prefixd::index {
namespace {

void AddAge(std::optional<int64_t> from_us, int64_t now_us, block::AgeHistogram* histogram) {
  if (!from_us.has_value()) return;
  histogram->Add(static_cast<uint64_t>(std::max<int64_t>(0, now_us - *from_us)) / 1000);
}

}  // namespace

void Ages::Counting::Add(const Node& node, block::AgeHistogram* since_use,
                         block::AgeHistogram* since_birth) const {
  const uint64_t serial = node.serial();
  if (serial == 0) return;
  AddAge(ages_->uses_.At(static_cast<uint64_t>(node.stamp), static_cast<uint64_t>(stamp_)), now_us_,
         since_use);
  AddAge(ages_->births_.At(serial, serial_), now_us_, since_birth);
}

}  // namespace prefixd::index
