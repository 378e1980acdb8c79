// The limits that workloads are held against: plain loops that call nothing of the project.
//
// Pure functions, thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>

namespace prefixd::bench {

// Reads every byte once in order, with the widest vectors of this CPU. Returns a sum over them.
// Requires: 64-byte aligned, bytes a multiple of 512.
uint64_t StreamRead(const std::byte* from, size_t bytes);

// The C library's memcpy and memcmp, out of line.
void CopyBytes(const std::byte* from, std::byte* to, size_t bytes);
bool SameBytes(const std::byte* a, const std::byte* b, size_t bytes);

}  // namespace prefixd::bench
