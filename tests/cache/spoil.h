// Pages on SSD that turn out bad: their records are written again with a wrong check.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cache/store/record.h"
#include "ssd/segment_store.h"

namespace prefixd::testing {

// Of `group`, in the block that begins at `first`. The store must be closed.
inline void SpoilOnSsd(const std::string& directory, uint32_t group, uint32_t first) {
  auto store = ssd::SegmentStore::Open({.directory = directory});
  ASSERT_TRUE(store.ok()) << store.status();
  std::vector<cache::BlockRecord> records;
  uint64_t unreadable = 0;
  ASSERT_TRUE((*store)
                  ->ForEachRecord(
                      [&](uint64_t, std::span<const std::byte> bytes) {
                        records.push_back(*cache::DecodeRecord(bytes));
                        return absl::OkStatus();
                      },
                      &unreadable)
                  .ok());
  auto segment = (*store)->NewSegment();
  ASSERT_TRUE(segment.ok());
  for (cache::BlockRecord& record : records) {
    for (auto& page : record.block.pages) {
      if (page.group == group && record.first_token == first) page.check ^= 1;
    }
    ASSERT_TRUE((*segment)->AddRecord(cache::EncodeRecord(record)).ok());
  }
  ASSERT_TRUE((*segment)->Finish().ok());
}

}  // namespace prefixd::testing
