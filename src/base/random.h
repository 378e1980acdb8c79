// Random numbers that nobody can guess, for ids that give access to whoever knows them.
//
// Thread-safe.
#pragma once
#include <cstdint>

namespace prefixd::base {

// 64 bits from the kernel's generator; never 0.
uint64_t RandomWord();

}  // namespace prefixd::base
