// What the kernel counts of a disk.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace prefixd::bench {

// Bytes written so far to the device that `path` stands on, by everybody. nullopt where the kernel
// does not show it (an overlay, a network filesystem).
std::optional<uint64_t> DeviceBytesWritten(const std::string& path);

// Bytes that a process caused to be written to any device so far. 0 when it is gone.
uint64_t ProcessBytesWritten(pid_t pid);

// Allocated blocks of the files below a folder, in bytes.
uint64_t AllocatedBytes(const std::string& directory);

}  // namespace prefixd::bench
