// Threads that help calls of this process. They are started when a call first wants them and then
// wait for the next call: starting a thread takes a tenth of a short decode step.
//
// Thread-safe; calls from several threads share idle ones. After fork() the child starts its own.
#pragma once
#include <cstdint>
#include <functional>

namespace prefixd::kernels {

// Runs work(0) on the calling thread and, meanwhile, work(1) ... work(count - 1) on kept threads.
// None of these begins after work(0) has returned, so any may be left out: let `work` take pieces
// until none is left. Returns when all that began have ended. Requires: count > 0.
void RunOnKeptThreads(uint32_t count, const std::function<void(uint32_t)>& work);

}  // namespace prefixd::kernels
