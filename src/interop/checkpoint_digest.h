// The digest that identifies a checkpoint's weights in a space identity. Checkpoints with the same
// numbers under the same names have the same digest, whatever their files are called.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"

#include "base/checksum.h"
#include "base/clock.h"

namespace prefixd::interop {

// SHA-256 over: framed "prefixd/1/weights", u64 number of tensors, then for every tensor in byte
// order of its name: framed name, framed dtype ("BF16"), u32 rank, rank x u64 size, 32-byte SHA-256
// of its bytes. Framed = u32 length, then the text; all little-endian.
//
// Reading gigabytes takes seconds, so DigestMemory::file remembers the digest by path, device,
// inode, size, and times of change of every file. A digest is not remembered if a file changed
// while it was read or within the last two seconds: a second change within one tick of the file
// system's clock would go unseen. Failures of the memory are ignored, and the digest is computed
// again. Errors are those of Checkpoint::Open. Blocks; thread-safe.
using OnRead = std::function<void(uint64_t read, uint64_t whole)>;  // bytes of all tensors
struct DigestMemory {
  std::string file;  // made with mode 0600 in a directory of mode 0700; empty = do not remember
  const base::Clock* clock = &base::SystemClock::Get();
  OnRead on_read{};  // told after each piece of at most 64 MiB; may be empty
};
absl::StatusOr<base::Digest256> DigestCheckpoint(const std::string& directory,
                                                 const DigestMemory& memory);

// Remembers in $XDG_CACHE_HOME/prefixd/checkpoint_digests, or ~/.cache/prefixd/checkpoint_digests.
absl::StatusOr<base::Digest256> DigestCheckpoint(const std::string& directory,
                                                 const OnRead& on_read = {});

// SHA-256 of one file, a GGUF file for example, remembered in the same way. NotFound if it cannot
// be read.
absl::StatusOr<base::Digest256> DigestWholeFile(const std::string& path,
                                                const DigestMemory& memory);
absl::StatusOr<base::Digest256> DigestWholeFile(const std::string& path);

}  // namespace prefixd::interop
