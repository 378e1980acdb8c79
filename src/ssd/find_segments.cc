#include <algorithm>
#include <map>

#include "rocksdb/convenience.h"
#include "rocksdb/metadata.h"

#include "base/status.h"
#include "ssd/store_state.h"

namespace prefixd::ssd {
namespace {

// By first sequence.
using SegmentMap = std::map<uint64_t, SegmentInfo>;

SegmentInfo* SegmentAround(SegmentMap* segments, uint64_t first, uint64_t last) {
  auto next = segments->upper_bound(first);
  if (next == segments->begin()) return nullptr;
  SegmentInfo& before = std::prev(next)->second;
  return last <= before.last_sequence ? &before : nullptr;
}

absl::Status DeleteOrphan(const TableDb& table_db, const rocksdb::LiveFileMetaData& file) {
  const rocksdb::Slice first(file.smallestkey), last(file.largestkey);
  return FromRocks(rocksdb::DeleteFilesInRange(table_db.db.get(), table_db.pages, &first, &last),
                   absl::StrCat("cannot remove ", file.relative_filename, " of a dropped segment"));
}

}  // namespace

absl::StatusOr<std::vector<SegmentInfo>> FindSegments(
    const TableDb& table_db, std::map<uint64_t, std::string>* pages_paths) {
  std::vector<rocksdb::LiveFileMetaData> files;
  table_db.db->GetLiveFilesMetaData(&files);
  SegmentMap segments;
  for (const rocksdb::LiveFileMetaData& file : files) {
    if (file.column_family_name != table_db.records->GetName()) continue;
    const uint64_t first = SequenceOf(file.smallestkey);
    segments[first] = {.first_sequence = first,
                       .last_sequence = SequenceOf(file.largestkey),
                       .file_bytes = file.size};
  }
  for (const rocksdb::LiveFileMetaData& file : files) {
    if (file.column_family_name != table_db.pages->GetName()) continue;
    SegmentInfo* segment =
        SegmentAround(&segments, SequenceOf(file.smallestkey), SequenceOf(file.largestkey));
    if (segment == nullptr) {
      PREFIXD_RETURN_IF_ERROR(DeleteOrphan(table_db, file));
    } else {
      segment->file_bytes += file.size;
      (*pages_paths)[segment->first_sequence] =
          absl::StrCat(file.directory, "/", file.relative_filename);
    }
  }
  std::vector<SegmentInfo> sorted;
  for (const auto& [first, segment] : segments) sorted.push_back(segment);
  return sorted;
}

}  // namespace prefixd::ssd
