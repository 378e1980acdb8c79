// What the default column family holds: the store's own keys (format version, epoch) and, apart
// from them under a prefix, the metadata of the rooms above.
//
//   "store/format_version" -> u32 little-endian
//   "store/epoch"          -> u64 little-endian, the last epoch that was begun; up to format
//                             version 3 u32, of epochs of 2^40 sequences
//   "meta/" + key          -> value of PutMeta
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "ssd/table_db.h"

namespace prefixd::ssd {

inline constexpr const char* kFormatVersionKey = "store/format_version";
inline constexpr const char* kEpochKey = "store/epoch";
inline constexpr const char* kMetaPrefix = "meta/";

// A sequence is epoch << kCounterBits | counter. Few bits, so that sequences stay small numbers,
// which the index keeps in fewer bytes: an epoch that is used up is followed by the next.
inline constexpr int kCounterBits = 20;
inline constexpr uint64_t kMaxCounter = (uint64_t{1} << kCounterBits) - 1;
inline constexpr uint64_t kMaxEpoch = ~uint64_t{0} >> kCounterBits;

// Of the store in `directory`, read without changing anything; nullopt when there is none yet.
// FailedPrecondition naming both versions when it is a later one than ours.
absl::StatusOr<std::optional<uint32_t>> ReadFormatVersion(const std::string& directory,
                                                          const FileLayer* files);

// Raises the epoch by one, synced, before any sequence of it is given out; beyond that of
// `last_on_disk` in any case, a sequence, should what was synced be an earlier epoch again.
// FailedPrecondition when all epochs are used.
absl::StatusOr<uint64_t> RaiseEpoch(TableDb* table_db, uint64_t last_on_disk);

}  // namespace prefixd::ssd
