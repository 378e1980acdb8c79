// Cuts the work of one call into pieces for threads of this process. The threads are started when a
// call first wants them and then wait for the next call: starting a thread takes a tenth of a short
// decode step.
//
// Thread-safe; calls from several threads share idle ones. After fork() the child starts its own.
#pragma once
#include <cstdint>
#include <functional>

namespace prefixd::kernels {

// Calls work(piece, thread) once for each piece below `pieces`, on the calling thread, which is
// thread 0, and at most `threads` - 1 kept threads. Pieces of one thread are called one after the
// other, in ascending order. Returns when all have returned. `work` must not throw.
// Requires: threads > 0.
void ForEachPiece(uint32_t threads, uint64_t pieces,
                  const std::function<void(uint64_t piece, uint32_t thread)>& work);

}  // namespace prefixd::kernels
