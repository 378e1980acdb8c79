// Counts this thread's passes through loops whose length a request decides. Tests measure by it
// what a request costs, whatever else runs on the machine.
#pragma once
#include <cstdint>

namespace prefixd::base {

// Counted since the thread began.
inline constinit thread_local uint64_t steps = 0;

inline void CountSteps(uint64_t count = 1) { steps += count; }

}  // namespace prefixd::base
