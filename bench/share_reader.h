// The worker process of the read figures: leases one prefix and reads it in place.
#pragma once
#include <cstdint>
#include <string>

#include "bench/stored_sequences.h"

namespace prefixd::bench {

// The prefix of the read and stream figures, in pages of about 1 MiB.
const Geometry& SharedGeometry();

// Of a process, from /proc/PID/smaps_rollup; 0 when it is gone.
struct MemoryUse {
  uint64_t private_bytes = 0;  // clean and dirty
  uint64_t pss_bytes = 0;
};
MemoryUse MemoryUseOf(pid_t pid);

}  // namespace prefixd::bench
