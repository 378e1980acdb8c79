// What the default column family holds: the store's own keys (format version, epoch) and, apart
// from them under a prefix, the metadata of the rooms above.
//
//   "store/format_version" -> u32 little-endian
//   "store/key_id"         -> 16 bytes, id of the key of its hashes
//   "store/epoch"          -> u64 little-endian, the last epoch that was begun
//   "store/borders"        -> "1": the files of cleared_borders.h must be there
//   "meta/" + key          -> value of PutMeta
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/checksum.h"
#include "ssd/table_db.h"

namespace prefixd::ssd {

inline constexpr const char* kFormatVersionKey = "store/format_version";
inline constexpr const char* kKeyIdKey = "store/key_id";
inline constexpr const char* kEpochKey = "store/epoch";
inline constexpr const char* kBordersKey = "store/borders";
inline constexpr const char* kMetaPrefix = "meta/";

// A sequence is epoch << kCounterBits | counter. The counter has few bits, so that sequences stay
// small numbers, which the index keeps in fewer bytes. When an epoch is used up, the next one
// begins.
inline constexpr int kCounterBits = 20;
inline constexpr uint64_t kMaxCounter = (uint64_t{1} << kCounterBits) - 1;
inline constexpr uint64_t kMaxEpoch = ~uint64_t{0} >> kCounterBits;

struct FoundStore {
  uint32_t version = 0;
  std::string key_id;
};

// Reads what the store in `directory` is, without changing anything. Returns nullopt if there is
// none yet. FailedPrecondition, naming both versions, if its version is later than ours.
absl::StatusOr<std::optional<FoundStore>> ReadFound(const std::string& directory,
                                                    const FileLayer* files);

// The store's own keys; zeros if the store is new.
struct StoreKeys {
  uint64_t epoch = 0;
  bool borders = false;
};
absl::StatusOr<StoreKeys> ReadStoreKeys(const TableDb& table_db);

// Raises the epoch by one and syncs it, before any sequence of it is given out; returns the new
// epoch. It is in any case beyond the epoch of the sequence `last_known`, should the database have
// lost epochs that were synced. Notes the key, and that the files of borders are there.
// FailedPrecondition if all epochs are used.
absl::StatusOr<uint64_t> RaiseEpoch(TableDb* table_db, uint64_t last_known,
                                    const std::optional<base::Hash128>& key_id);

}  // namespace prefixd::ssd
