// What publishing and adoption share about records.
#pragma once
#include <cstddef>
#include <cstdint>

#include "block/arena_file.h"

namespace prefixd::ram {

// Requires: block_tokens <= kMaxRecordTokens, content_keys <= kMaxRecordContent.
uint64_t RecordCheck(const block::PageRecord& record);
uint64_t SpaceCheck(const std::byte* id, const std::byte* identity, uint32_t bytes);

// Makes the record name nothing from here on, whenever the process ends.
void RetireRecord(block::PageRecord* record);
void ClearMarks(block::PageMarks* marks);

}  // namespace prefixd::ram
