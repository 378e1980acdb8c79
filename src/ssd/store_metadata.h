// What the default column family holds: the store's own keys (format version, epoch) and, apart
// from them under a prefix, the metadata of the rooms above.
//
//   "store/format_version" -> u32 little-endian
//   "store/key_id"         -> 16 bytes, of the key of the hashes in it
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

// A sequence is epoch << kCounterBits | counter. Few bits, so that sequences stay small numbers,
// which the index keeps in fewer bytes: an epoch that is used up is followed by the next.
inline constexpr int kCounterBits = 20;
inline constexpr uint64_t kMaxCounter = (uint64_t{1} << kCounterBits) - 1;
inline constexpr uint64_t kMaxEpoch = ~uint64_t{0} >> kCounterBits;

struct FoundStore {
  uint32_t version = 0;
  std::string key_id;
};

// Of the store in `directory`, read without changing anything; nullopt when there is none yet.
// FailedPrecondition naming both versions when it is a later one than ours.
absl::StatusOr<std::optional<FoundStore>> ReadFound(const std::string& directory,
                                                    const FileLayer* files);

// What the default column family says of itself; zeros where it is new.
struct StoreKeys {
  uint64_t epoch = 0;
  bool borders = false;
};
absl::StatusOr<StoreKeys> ReadStoreKeys(const TableDb& table_db);

// Raises the epoch by one, synced, before any sequence of it is given out; beyond that of
// `last_known` in any case, a sequence, should what was synced be an earlier epoch again. Notes
// the key, and that the files of borders are there. FailedPrecondition when all epochs are used.
absl::StatusOr<uint64_t> RaiseEpoch(TableDb* table_db, uint64_t last_known,
                                    const std::optional<base::Hash128>& key_id);

}  // namespace prefixd::ssd
