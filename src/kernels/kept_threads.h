// Threads that help calls of this process. They are started when a call first wants them and wait
// for the next one: starting a thread takes a tenth of a short decode step.
//
// Thread-safe; calls of several threads share what is idle. After fork() the child starts its own.
#pragma once
#include <cstdint>
#include <functional>

namespace prefixd::kernels {

// Runs work(0) here and work(1) ... work(count - 1) on kept threads meanwhile. One that would come
// after work(0) has returned does not begin, so any of them may be left out: let `work` take pieces
// until none is left. Returns when all that began have ended. Requires: count > 0.
void RunOnKeptThreads(uint32_t count, const std::function<void(uint32_t)>& work);

}  // namespace prefixd::kernels
