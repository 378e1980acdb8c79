// A file that a thread of its own writes while its writer makes the next bytes.
//
// RocksDB's SstFileWriter makes a block and waits for the disk in turns. Its own way to do both at
// once (parallel_threads) does not end when a write fails. Here an append copies into an aligned
// buffer and returns. An error is kept, and every later call returns it, at the latest Sync and
// Close.
#pragma once
#include <cstdint>
#include <memory>

#include "rocksdb/file_system.h"

namespace prefixd::ssd {

inline constexpr uint64_t kWriteBehindBufferBytes = 1 << 20;
inline constexpr int kWriteBehindBuffers = 3;

// Returns such a file over `file`, which takes direct writes. Not thread-safe, like all such files.
std::unique_ptr<rocksdb::FSWritableFile> WriteBehind(std::unique_ptr<rocksdb::FSWritableFile> file);

}  // namespace prefixd::ssd
