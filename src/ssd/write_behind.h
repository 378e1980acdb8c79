// A file that is written by a thread of its own while its writer makes the next bytes.
//
// RocksDB's SstFileWriter makes a block and waits for the disk in turns, and its own way to do both
// at once (parallel_threads) does not end when a write fails. Here an append copies into an aligned
// buffer and returns; an error is kept and returned by every later call, by Sync and Close at last.
#pragma once
#include <cstdint>
#include <memory>

#include "rocksdb/file_system.h"

namespace prefixd::ssd {

inline constexpr uint64_t kWriteBehindBufferBytes = 1 << 20;
inline constexpr int kWriteBehindBuffers = 3;

// Over `file`, which takes direct writes. Not thread-safe, as all such files.
std::unique_ptr<rocksdb::FSWritableFile> WriteBehind(std::unique_ptr<rocksdb::FSWritableFile> file);

}  // namespace prefixd::ssd
