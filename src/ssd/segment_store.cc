#include "ssd/segment_store.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "rocksdb/convenience.h"

#include "base/bytes.h"
#include "base/status.h"
#include "ssd/page_coding.h"
#include "ssd/record_reader.h"
#include "ssd/store_metadata.h"
#include "ssd/store_state.h"

namespace prefixd::ssd {
namespace {

absl::Status DeleteFiles(const TableDb& table_db, rocksdb::ColumnFamilyHandle* family,
                         const SegmentInfo& segment) {
  const std::string first_key = SequenceKey(segment.first_sequence);
  const std::string last_key = SequenceKey(segment.last_sequence);
  const rocksdb::Slice first(first_key), last(last_key);
  return FromRocks(
      rocksdb::DeleteFilesInRange(table_db.db.get(), family, &first, &last),
      absl::StrCat("cannot drop the ", family->GetName(), " of segment ", segment.first_sequence));
}

// Copies the header, which stands in the key or, up to format version 2, in front of the page, and
// gives what is stored of the page: nothing when the header is not whole.
std::span<const std::byte> HeaderAndPage(const rocksdb::Iterator& entry,
                                         block::PageHeader* header) {
  std::string_view in = entry.value().ToStringView();
  if (entry.key().size() == kPageKeyBytes) {
    std::memcpy(header, entry.key().data() + kSequenceKeyBytes, sizeof(*header));
    return base::AsBytes(in);
  }
  if (in.size() < sizeof(*header)) return {};
  std::memcpy(header, in.data(), sizeof(*header));
  return base::AsBytes(in.substr(sizeof(*header)));
}

bool SameRange(const SegmentInfo& a, const SegmentInfo& b) {
  return a.first_sequence == b.first_sequence && a.last_sequence == b.last_sequence;
}

}  // namespace

struct SegmentStore::Impl {
  StoreState state;
  std::string reclaimed_why;
};

SegmentStore::SegmentStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SegmentStore::~SegmentStore() = default;

absl::StatusOr<std::unique_ptr<SegmentStore>> SegmentStore::Open(const Options& options) {
  auto impl = std::make_unique<Impl>();
  StoreState& state = impl->state;
  PREFIXD_ASSIGN_OR_RETURN(state.directory,
                           StoreDirectory::Open(options.directory, options.lock_wait));
  // RocksDB's own lock, which it asks for only once.
  const std::string database_lock = options.directory + "/LOCK";
  PREFIXD_RETURN_IF_ERROR(
      base::AwaitRecordLock(database_lock, "segment store: " + database_lock, options.lock_wait));
  PREFIXD_ASSIGN_OR_RETURN(const std::optional<uint32_t> version,
                           ReadFormatVersion(options.directory, options.files.get()));
  if (version.value_or(kStoreFormatVersion) < kOldestReadVersion) {
    PREFIXD_RETURN_IF_ERROR(state.directory->RemoveStore());
    impl->reclaimed_why =
        absl::StrCat("format version ", *version, ", the oldest that this prefixd reads is ",
                     kOldestReadVersion);
  }
  PREFIXD_RETURN_IF_ERROR(state.directory->RemoveIncoming());
  const bool direct_io = options.direct_io && state.directory->SupportsDirectIo();
  state.table_options = {.directory = options.directory,
                         .direct_io = direct_io,
                         .block_cache_bytes = options.block_cache_bytes,
                         .files = options.files};
  PREFIXD_ASSIGN_OR_RETURN(const TableDbPtr table, state.Table());
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t epoch, RaiseEpoch(table.get(), state.LastOnDisk()));
  state.last_sequence = epoch << kCounterBits;
  return std::unique_ptr<SegmentStore>(new SegmentStore(std::move(impl)));
}

absl::Status SegmentStore::PutMeta(const std::string& key, const std::string& value) {
  rocksdb::WriteBatch batch;
  batch.Put(kMetaPrefix + key, value);
  PREFIXD_ASSIGN_OR_RETURN(const TableDbPtr table, impl_->state.TableForChanges());
  return table->WriteMeta(&batch, absl::StrCat("cannot write metadata ", key));
}

absl::Status SegmentStore::DeleteMeta(const std::string& key) {
  rocksdb::WriteBatch batch;
  batch.Delete(kMetaPrefix + key);
  PREFIXD_ASSIGN_OR_RETURN(const TableDbPtr table, impl_->state.TableForChanges());
  return table->WriteMeta(&batch, absl::StrCat("cannot delete metadata ", key));
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> SegmentStore::ListMeta(
    const std::string& prefix) const {
  const std::string start = kMetaPrefix + prefix;
  PREFIXD_ASSIGN_OR_RETURN(const TableDbPtr table, impl_->state.Table());
  const std::unique_ptr<rocksdb::Iterator> entry(table->db->NewIterator(rocksdb::ReadOptions()));
  std::vector<std::pair<std::string, std::string>> list;
  for (entry->Seek(start); entry->Valid() && entry->key().starts_with(start); entry->Next()) {
    list.emplace_back(entry->key().ToString().substr(std::strlen(kMetaPrefix)),
                      entry->value().ToString());
  }
  PREFIXD_RETURN_IF_ERROR(FromRocks(entry->status(), "cannot list metadata"));
  return list;
}

absl::StatusOr<std::unique_ptr<SegmentWriter>> SegmentStore::NewSegment() {
  PREFIXD_ASSIGN_OR_RETURN(TableDbPtr table, impl_->state.TableForChanges());
  {
    base::MutexLock lock(impl_->state.mutex);
    if (impl_->state.writing) {
      return absl::FailedPreconditionError("segment store: another segment is being written");
    }
    impl_->state.writing = true;
  }
  return MakeSegmentWriter(&impl_->state, std::move(table));
}

absl::Status SegmentStore::ReadPage(uint64_t sequence, block::PageHeader* header,
                                    std::span<std::byte> page) const {
  PREFIXD_ASSIGN_OR_RETURN(const TableDbPtr table, impl_->state.Table());
  // The key is known up to the header in it.
  const std::unique_ptr<rocksdb::Iterator> entry(
      table->db->NewIterator(table->read_options(), table->pages));
  entry->Seek(SequenceKey(sequence));
  PREFIXD_RETURN_IF_ERROR(FromRocks(entry->status(), absl::StrCat("cannot read page ", sequence)));
  if (!entry->Valid() || SequenceOf(entry->key()) != sequence) {
    return absl::NotFoundError(absl::StrCat("segment store: no page ", sequence));
  }
  const std::span<const std::byte> stored = HeaderAndPage(*entry, header);
  if (stored.size() > 0 && header->coding != kPlainPage) {
    return DecodePage(stored, std::exchange(header->coding, kPlainPage), page);
  }
  if (stored.size() != page.size()) {
    return absl::DataLossError(absl::StrCat("segment store: page ", sequence, " has ",
                                            stored.size(), " bytes, expected ", page.size()));
  }
  std::memcpy(page.data(), stored.data(), page.size());
  return absl::OkStatus();
}

absl::Status SegmentStore::ReadPage(uint64_t sequence, const block::PageName& name, uint64_t check,
                                    std::span<std::byte> page) const {
  PREFIXD_ASSIGN_OR_RETURN(const TableDbPtr table, impl_->state.Table());
  if (impl_->state.page_files.Read(*table, sequence, name, check, page)) return absl::OkStatus();
  block::PageHeader header;
  PREFIXD_RETURN_IF_ERROR(ReadPage(sequence, &header, page));
  return block::VerifyPage(header, name, check, page);
}

absl::Status SegmentStore::ForEachRecord(
    const std::function<absl::Status(uint64_t sequence, std::span<const std::byte> record)>& visit,
    uint64_t* unreadable) const {
  *unreadable = 0;
  PREFIXD_ASSIGN_OR_RETURN(const TableDbPtr table, impl_->state.Table());
  for (const SegmentInfo& segment : Segments()) {
    RecordReader reader(*table, segment, &impl_->state.reader_bytes);
    PREFIXD_RETURN_IF_ERROR(reader.ForEach(visit));
    *unreadable += reader.unreadable();
  }
  return absl::OkStatus();
}

absl::Status SegmentStore::ForEachRecordOf(
    const SegmentInfo& segment,
    const std::function<absl::Status(uint64_t sequence, std::span<const std::byte> record)>& visit,
    uint64_t* unreadable) const {
  PREFIXD_ASSIGN_OR_RETURN(const TableDbPtr table, impl_->state.Table());
  RecordReader reader(*table, segment, &impl_->state.reader_bytes);
  const absl::Status status = reader.ForEach(visit);
  *unreadable = reader.unreadable();
  return status;
}

std::vector<SegmentInfo> SegmentStore::Segments() const {
  base::MutexLock lock(impl_->state.mutex);
  return impl_->state.segments;
}

absl::Status SegmentStore::DropSegment(const SegmentInfo& segment) {
  StoreState& state = impl_->state;
  PREFIXD_ASSIGN_OR_RETURN(const TableDbPtr table, state.TableForChanges());
  const std::vector<SegmentInfo> segments = Segments();
  const auto same = [&](const SegmentInfo& other) { return SameRange(other, segment); };
  if (std::none_of(segments.begin(), segments.end(), same)) {
    return absl::NotFoundError(absl::StrCat("segment store: no segment ", segment.first_sequence,
                                            " to ", segment.last_sequence));
  }
  // Records first: pages without records are removed at the next Open, the other way round a record
  // would promise pages that are gone.
  PREFIXD_RETURN_IF_ERROR(DeleteFiles(*table, table->records, segment));
  PREFIXD_RETURN_IF_ERROR(DeleteFiles(*table, table->pages, segment));
  state.page_files.Drop(segment);
  base::MutexLock lock(state.mutex);
  std::erase_if(state.segments, same);
  return absl::OkStatus();
}

uint64_t SegmentStore::FileBytes() const { return impl_->state.directory->AllocatedBytes(); }

uint64_t SegmentStore::FreeBytes() const { return impl_->state.directory->FreeBytes(); }

uint64_t SegmentStore::MemoryBytes() const {
  TableDbPtr table;
  {
    base::MutexLock lock(impl_->state.mutex);
    table = impl_->state.table_db;
  }
  return (table == nullptr ? 0 : table->MemoryBytes()) + impl_->state.writer_bytes +
         impl_->state.reader_bytes + impl_->state.page_files.MemoryBytes();
}

uint64_t SegmentStore::last_sequence() const { return impl_->state.last_sequence; }

const std::string& SegmentStore::reclaimed_why() const { return impl_->reclaimed_why; }

bool SegmentStore::direct_io() const { return impl_->state.table_options.direct_io; }

}  // namespace prefixd::ssd
