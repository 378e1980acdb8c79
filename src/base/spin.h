// Waiting for a moment without giving the CPU away.
#pragma once

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
// sleeping: where few CPUs may be used, or a container's limit leaves few, the other one may need
// this one. As it was when the program started.
bool ManyCpus();

}  // namespace prefixd::base
