// How many float operations a core can do: what prefill's rate is compared with.
//
// Thread-safe.
#pragma once
#include <cstdint>

namespace prefixd::bench {

// Multiplies and adds floats in registers, a vector at a time on the best target of this machine.
// Returns how many operations that was: at least `flop`, two for each lane of each step.
uint64_t MultiplyAddFloats(uint64_t flop);

}  // namespace prefixd::bench
