#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rocksdb/sst_file_writer.h"

#include "base/bytes.h"
#include "base/status.h"
#include "ssd/page_coding.h"
#include "ssd/store_metadata.h"
#include "ssd/store_state.h"
#include "ssd/write_behind.h"

namespace prefixd::ssd {
namespace {

// A table file in incoming/, removed by the destructor unless an ingest has moved it away.
class IncomingFile {
 public:
  // `value_bytes`: about the size of most of its values.
  IncomingFile(const TableDb& table_db, rocksdb::ColumnFamilyHandle* family, std::string path,
               uint64_t value_bytes)
      : path_(std::move(path)),
        writer_(table_db.file_options(), table_db.table_options_for(value_bytes), family) {}
  ~IncomingFile() { unlink(path_.c_str()); }
  IncomingFile(const IncomingFile&) = delete;
  IncomingFile& operator=(const IncomingFile&) = delete;

  absl::Status Open() {
    return FromRocks(writer_.Open(path_), absl::StrCat("cannot create ", path_));
  }
  absl::Status Put(const std::string& key, const rocksdb::Slice& value) {
    last_entry_ = entries_.Next(key.size(), value.size());
    return FromRocks(writer_.Put(key, value), absl::StrCat("cannot write ", path_));
  }
  // Where the last entry that was Put stands.
  const EntryPlaces::Place& last_entry() const { return last_entry_; }
  // RocksDB's buffer and those of WriteBehind.
  uint64_t buffer_bytes(const TableDb& table_db) const {
    return table_db.table_options.writable_file_max_buffer_size +
           std::min(kWriteBehindBuffers * kWriteBehindBufferBytes,
                    base::AlignUp(entries_.file_bytes(), kWriteBehindBufferBytes));
  }
  absl::Status Finish() {  // synced
    rocksdb::ExternalSstFileInfo info;
    const rocksdb::Status status = writer_.Finish(&info);
    file_bytes_ = info.file_size;
    return FromRocks(status, absl::StrCat("cannot finish ", path_));
  }
  const std::string& path() const { return path_; }
  uint64_t file_bytes() const { return file_bytes_; }

 private:
  const std::string path_;
  rocksdb::SstFileWriter writer_;
  EntryPlaces entries_;
  EntryPlaces::Place last_entry_;
  uint64_t file_bytes_ = 0;
};

class TableSegmentWriter final : public SegmentWriter {
 public:
  TableSegmentWriter(StoreState* state, TableDbPtr table)
      : state_(*state), table_(std::move(table)) {}
  ~TableSegmentWriter() override;

  absl::StatusOr<uint64_t> AddPage(const block::PageHeader& header, std::span<const std::byte> page,
                                   uint32_t element_bytes) override;
  absl::StatusOr<uint64_t> AddRecord(const std::string& record) override;
  uint64_t bytes() const override { return bytes_; }
  absl::StatusOr<SegmentInfo> Finish() override;

 private:
  absl::StatusOr<uint64_t> NextSequence();
  absl::Status OpenRecords();
  absl::Status OpenPages(uint64_t page_bytes);
  absl::Status PutPage(uint64_t sequence, block::PageHeader header, std::span<const std::byte> page,
                       uint32_t element_bytes);
  absl::Status Ingest();
  absl::StatusOr<uint64_t> Keep(absl::StatusOr<uint64_t> result);
  absl::StatusOr<SegmentInfo> FinishFiles();
  void CountBuffers();
  // Removes the files unless they were ingested, and lets the store write another segment.
  void Close(const SegmentInfo* ingested);

  StoreState& state_;
  TableDbPtr table_;                               // until Close
  std::unique_ptr<IncomingFile> pages_, records_;  // opened by the first value
  std::string coded_;                              // a compressed page
  std::unique_ptr<PageCoder> coder_;               // from the first full-precision page on
  uint64_t largest_page_ = 0;                      // bytes
  uint64_t first_sequence_ = 0;                    // of the opening marker
  uint64_t records_count_ = 0;
  std::vector<PagePlace> places_;  // of large pages
  uint64_t bytes_ = 0;
  absl::Status first_error_;  // sticky: SstFileWriter cannot go on after one
  bool closed_ = false;
};

TableSegmentWriter::~TableSegmentWriter() { Close(nullptr); }

void TableSegmentWriter::Close(const SegmentInfo* ingested) {
  pages_.reset();
  records_.reset();
  table_.reset();
  if (std::exchange(closed_, true)) return;
  state_.writer_bytes = 0;
  base::MutexLock lock(state_.mutex);
  state_.writing = false;
  if (ingested != nullptr) state_.segments.push_back(*ingested);
}

absl::StatusOr<uint64_t> TableSegmentWriter::NextSequence() {
  uint64_t next = state_.last_sequence + 1;
  if ((next & kMaxCounter) == 0) {
    PREFIXD_ASSIGN_OR_RETURN(const uint64_t epoch,
                             RaiseEpoch(table_.get(), next - 1, state_.key_id));
    next = epoch << kCounterBits;
    state_.borders.NoteEpoch(epoch);
    PREFIXD_RETURN_IF_ERROR(state_.borders.Save());
  }
  state_.last_sequence = next;
  return next;
}

absl::Status TableSegmentWriter::OpenRecords() {
  if (records_ != nullptr) return absl::OkStatus();
  PREFIXD_ASSIGN_OR_RETURN(first_sequence_, NextSequence());
  records_ = std::make_unique<IncomingFile>(
      *table_, table_->records,
      state_.directory->IncomingPath(absl::StrCat(first_sequence_, ".records")),
      /*value_bytes=*/0);
  PREFIXD_RETURN_IF_ERROR(records_->Open());
  return records_->Put(SequenceKey(first_sequence_), rocksdb::Slice());
}

absl::Status TableSegmentWriter::OpenPages(uint64_t page_bytes) {
  if (pages_ != nullptr) return absl::OkStatus();
  PREFIXD_RETURN_IF_ERROR(OpenRecords());
  pages_ = std::make_unique<IncomingFile>(
      *table_, table_->pages,
      state_.directory->IncomingPath(absl::StrCat(first_sequence_, ".pages")), page_bytes);
  return pages_->Open();
}

absl::StatusOr<uint64_t> TableSegmentWriter::Keep(absl::StatusOr<uint64_t> result) {
  if (!result.ok()) first_error_ = result.status();
  return result;
}

void TableSegmentWriter::CountBuffers() {
  // Ours, RocksDB's block of one page, and the buffers of each file.
  state_.writer_bytes = places_.capacity() * sizeof(PagePlace) + coded_.capacity() + largest_page_ +
                        (coder_ == nullptr ? 0 : coder_->memory_bytes()) +
                        records_->buffer_bytes(*table_) +
                        (pages_ == nullptr ? 0 : pages_->buffer_bytes(*table_));
}

absl::Status TableSegmentWriter::PutPage(uint64_t sequence, block::PageHeader header,
                                         std::span<const std::byte> page, uint32_t element_bytes) {
  std::string_view value = base::AsText(page);  // where it lies, without a copy
  if (element_bytes != 0) {
    if (coder_ == nullptr) coder_ = std::make_unique<PageCoder>();
    coded_.clear();
    if (coder_->Append(page, element_bytes, &coded_)) {
      header.coding = element_bytes;
      value = coded_;
    }
  }
  const std::string key = PageKey(sequence, header);
  PREFIXD_RETURN_IF_ERROR(pages_->Put(key, rocksdb::Slice(value.data(), value.size())));
  bytes_ += sizeof(header) + value.size();
  largest_page_ = std::max<uint64_t>(largest_page_, value.size());
  if (header.coding == kPlainPage && page.size() >= kSmallestNotedPage) {
    const EntryPlaces::Place& entry = pages_->last_entry();
    places_.push_back({.sequence = sequence,
                       .offset = entry.key + kSequenceKeyBytes,
                       .gap_bytes = static_cast<uint8_t>(entry.value - entry.key - key.size())});
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> TableSegmentWriter::AddPage(const block::PageHeader& header,
                                                     std::span<const std::byte> page,
                                                     uint32_t element_bytes) {
  PREFIXD_RETURN_IF_ERROR(first_error_);
  return Keep([&]() -> absl::StatusOr<uint64_t> {
    PREFIXD_RETURN_IF_ERROR(OpenPages(page.size()));
    PREFIXD_ASSIGN_OR_RETURN(const uint64_t sequence, NextSequence());
    PREFIXD_RETURN_IF_ERROR(PutPage(sequence, header, page, element_bytes));
    CountBuffers();
    return sequence;
  }());
}

absl::StatusOr<uint64_t> TableSegmentWriter::AddRecord(const std::string& record) {
  PREFIXD_RETURN_IF_ERROR(first_error_);
  return Keep([&]() -> absl::StatusOr<uint64_t> {
    PREFIXD_RETURN_IF_ERROR(OpenRecords());
    PREFIXD_ASSIGN_OR_RETURN(const uint64_t sequence, NextSequence());
    PREFIXD_RETURN_IF_ERROR(records_->Put(SequenceKey(sequence), record));
    CountBuffers();
    ++records_count_;
    bytes_ += record.size();
    return sequence;
  }());
}

absl::Status TableSegmentWriter::Ingest() {
  rocksdb::IngestExternalFileOptions options;
  options.move_files = true;
  options.failed_move_fall_back_to_copy = false;  // same directory: a copy would hide an error
  options.snapshot_consistency = false;           // nobody takes snapshots
  options.allow_global_seqno = false;             // sequences are new: an overlap is an error
  options.write_global_seqno = false;
  std::vector<rocksdb::IngestExternalFileArg> args;
  for (const auto& [family, file] :
       {std::pair(table_->pages, pages_.get()), std::pair(table_->records, records_.get())}) {
    if (file == nullptr) continue;
    rocksdb::IngestExternalFileArg& arg = args.emplace_back();
    arg.column_family = family;
    arg.external_files = {file->path()};
    arg.options = options;
  }
  return FromRocks(table_->db->IngestExternalFiles(args), "cannot ingest a segment");
}

absl::StatusOr<SegmentInfo> TableSegmentWriter::FinishFiles() {
  if (records_ == nullptr) return absl::FailedPreconditionError("segment: nothing was added");
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t last_sequence, NextSequence());
  PREFIXD_RETURN_IF_ERROR(
      records_->Put(SequenceKey(last_sequence), EncodeClosingMarker(records_count_, places_)));
  PREFIXD_RETURN_IF_ERROR(records_->Finish());
  if (pages_ != nullptr) PREFIXD_RETURN_IF_ERROR(pages_->Finish());
  PREFIXD_RETURN_IF_ERROR(Ingest());
  const SegmentInfo segment{
      .first_sequence = first_sequence_,
      .last_sequence = last_sequence,
      .file_bytes = records_->file_bytes() + (pages_ == nullptr ? 0 : pages_->file_bytes())};
  if (pages_ != nullptr) state_.direct_reads.Add(segment, table_->TakeIngested(pages_->path()));
  return segment;
}

absl::StatusOr<SegmentInfo> TableSegmentWriter::Finish() {
  PREFIXD_RETURN_IF_ERROR(first_error_);
  absl::StatusOr<SegmentInfo> segment = FinishFiles();
  first_error_ =
      segment.ok() ? absl::FailedPreconditionError("segment: already finished") : segment.status();
  Close(segment.ok() ? &*segment : nullptr);
  return segment;
}

}  // namespace

std::unique_ptr<SegmentWriter> MakeSegmentWriter(StoreState* state, TableDbPtr table) {
  return std::make_unique<TableSegmentWriter>(state, std::move(table));
}

}  // namespace prefixd::ssd
