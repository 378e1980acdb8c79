// How long the bench waits for an answer of what it starts or calls: whatever takes longer hangs.
#pragma once
#include <chrono>

namespace prefixd::bench {

inline constexpr std::chrono::seconds kPatience{120};

}  // namespace prefixd::bench
