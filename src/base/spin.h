// Waiting for a moment without giving the CPU away.
#pragma once
#include <thread>

namespace prefixd::base {

// Tells the CPU that this is a loop that waits.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // waits about as long as x86's
#endif
}

// Whether a thread may look again and again for what another one is about to do, instead of
// sleeping: on a machine of few cores the other one may need this core.
inline bool ManyCores() {
  static const bool many = std::thread::hardware_concurrency() > 4;
  return many;
}

}  // namespace prefixd::base
