// The key of block hashes (block/block_hash.h): where a cache keeps it between its lives.
//
// The pages in the arena and on SSD carry hashes made with it, and whoever knows it can search for
// blocks of one hash: it stands in files that only the daemon's user reads, never in the arena's
// file, which workers map, nor on the wire.
#pragma once
#include <functional>
#include <string>

#include "absl/status/statusor.h"

#include "block/block_hash.h"

namespace prefixd::cache {

// Its files, each beside what was made with it. Empty: there is none.
struct HashKeyPlaces {
  std::string store, arena;
};

// The store's, or else the arena's, or else a new one. A file that cannot be used is as none, and
// `say` hears of it. Unavailable: the kernel gives no random bytes.
absl::StatusOr<block::HashKey> FindHashKey(const HashKeyPlaces& places,
                                           const std::function<void(const std::string&)>& say);

// Into the file, unless it is there already.
absl::Status KeepHashKey(const std::string& path, const block::HashKey& key);

// What tells keys apart and says nothing of them.
base::Hash128 IdOf(const block::HashKey& key);

}  // namespace prefixd::cache
