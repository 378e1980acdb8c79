// What this process and this machine have of memory, as the kernel tells it.
#pragma once
#include <sys/types.h>

#include <cstdint>

namespace prefixd::bench {

// Resident in RAM now. 0 when the kernel does not say.
uint64_t ResidentBytes();

// Resident anonymous memory of a process. 0 when it is gone.
uint64_t AnonymousBytes(pid_t pid);

// The same and what it shares, as far as it is resident in its own tables: no program text.
uint64_t AllocatedBytes(pid_t pid);

// The memory of a process, as /proc/PID/smaps_rollup says it. 0 when the process is gone.
struct MemoryUse {
  uint64_t private_bytes = 0;  // clean and dirty
  uint64_t pss_bytes = 0;
};
MemoryUse MemoryUseOf(pid_t pid);

// Handed to disks by a process so far. 0 when it is gone.
uint64_t BytesWritten(pid_t pid);

// MemAvailable of /proc/meminfo. 0 when the kernel does not say.
uint64_t AvailableBytes();

}  // namespace prefixd::bench
