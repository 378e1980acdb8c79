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

// How often to look for something that another thread is about to do before sleeping. None on a
// machine of few cores: the other thread may need this one.
inline int Looks(int on_many_cores) {
  static const bool many = std::thread::hardware_concurrency() > 4;
  return many ? on_many_cores : 0;
}

}  // namespace prefixd::base
