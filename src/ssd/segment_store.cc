#include "ssd/segment_store.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "rocksdb/convenience.h"

#include "base/bytes.h"
#include "base/size.h"
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

// Returns what is stored of the page, and copies its header from the end of the key. Returns
// nothing if the key has no header.
std::span<const std::byte> HeaderAndPage(const rocksdb::Iterator& entry,
                                         block::PageHeader* header) {
  if (entry.key().size() != kPageKeyBytes) return {};
  std::memcpy(header, entry.key().data() + kSequenceKeyBytes, sizeof(*header));
  return base::AsBytes(entry.value().ToStringView());
}

// Returns why the store must be reclaimed; empty if it can be used.
std::string WhyReclaim(const FoundStore& found, const std::optional<base::Hash128>& key_id) {
  if (found.version < kOldestReadVersion) {
    return absl::StrCat("format version ", found.version,
                        ", the oldest that this prefixd reads is ", kOldestReadVersion);
  }
  if (!key_id.has_value() || found.key_id == base::AsText(*key_id)) return "";
  return "the hashes in it are made with another key";
}

// Returns how much RocksDB may write until it is open: a manifest of what is there, tables of what
// stands in its log, and files of its own. Without logs and tables it needs between 128 and 256
// KiB.
uint64_t OpenRoomBytes(const StoreDirectory& directory) {
  return (uint64_t{1} << 20) + 2 * directory.BytesOf({"MANIFEST-", ".log"});
}

absl::Status CheckFree(const StoreDirectory& directory, uint64_t wanted) {
  if (wanted == 0) return absl::OkStatus();
  const uint64_t free = directory.FreeBytes() + directory.AllocatedBytes();
  if (free >= wanted) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("segment store: the disk of ", directory.path(),
                                             " has ", base::FormatBytes(free),
                                             " free, the floor is ", base::FormatBytes(wanted)));
}

// Reads all metadata: damage found here would break every later call.
absl::Status CheckMetadata(const TableDb& table_db) {
  const std::unique_ptr<rocksdb::Iterator> entry(table_db.db->NewIterator(rocksdb::ReadOptions()));
  for (entry->SeekToFirst(); entry->Valid();) entry->Next();
  return FromRocks(entry->status(), "cannot read the metadata");
}

bool SameRange(const SegmentInfo& a, const SegmentInfo& b) {
  return a.first_sequence == b.first_sequence && a.last_sequence == b.last_sequence;
}

}  // namespace

struct SegmentStore::Impl {
  explicit Impl(const Options& options) : state(options.directory, options.files) {}
  // Opens or makes the database and raises the epoch. DataLoss if it is damaged.
  absl::Status OpenDatabase(const Options& options);
  absl::Status SettleBorders(const TableDb& table, bool existed);
  absl::Status MoveAside(const absl::Status& why);
  // RocksDB has a page that was not where its segment notes it. Reads it there once more, as one
  // damaged read says nothing of the layout, and leaves the segment to RocksDB if it is elsewhere.
  void LearnLayout(const TableDb& table, uint64_t sequence, const block::PageName& name,
                   uint64_t check, size_t page_bytes);

  StoreState state;
  BorderFiles::Found borders_found = BorderFiles::Found::kNone;
  Findings findings;
};

SegmentStore::SegmentStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SegmentStore::~SegmentStore() = default;

// If the files of borders must be there and are not, all that is stored may have been cleared.
absl::Status SegmentStore::Impl::SettleBorders(const TableDb& table, bool existed) {
  PREFIXD_ASSIGN_OR_RETURN(const StoreKeys keys, ReadStoreKeys(table));
  using Found = BorderFiles::Found;
  const bool lost = borders_found == Found::kLost || borders_found == Found::kNone;
  if (borders_found == Found::kOneDamaged) findings.notes.push_back("one file of borders was bad");
  if (lost && (keys.borders || borders_found == Found::kLost) && state.LastOnDisk() > 0) {
    state.borders.Add({.all = state.LastOnDisk()}, 0);
    findings.cleared_why = "the files that say what was cleared are gone or damaged";
  }
  if (existed && keys.epoch < state.borders.epoch()) {
    findings.notes.push_back(absl::StrCat("the database lost its latest metadata: it knows epoch ",
                                          keys.epoch, ", the files of borders ",
                                          state.borders.epoch()));
  }
  return state.borders.Save();  // so that they are there before the database says that they must be
}

absl::Status SegmentStore::Impl::OpenDatabase(const Options& options) {
  bool existed = state.directory->HasDatabase();
  if (!existed && state.directory->BytesOf({".sst"}) > 0) {
    return absl::DataLossError(
        absl::StrCat("segment store: ", options.directory, " has table files, but no CURRENT"));
  }
  PREFIXD_ASSIGN_OR_RETURN(const std::optional<FoundStore> found,
                           ReadFound(options.directory, options.files.get()));
  if (found.has_value()) findings.reclaimed_why = WhyReclaim(*found, options.key_id);
  if (!findings.reclaimed_why.empty()) {
    PREFIXD_RETURN_IF_ERROR(state.directory->RemoveStore());
    existed = false;
  }
  PREFIXD_ASSIGN_OR_RETURN(const TableDbPtr table, state.Table());
  PREFIXD_RETURN_IF_ERROR(CheckMetadata(*table));
  PREFIXD_RETURN_IF_ERROR(SettleBorders(*table, existed));
  const uint64_t last_known =
      std::max({state.LastOnDisk(), state.borders.borders().Last(),
                std::min(state.borders.epoch(), kMaxEpoch) << kCounterBits});
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t epoch, RaiseEpoch(table.get(), last_known, state.key_id));
  state.last_sequence = epoch << kCounterBits;
  state.borders.NoteEpoch(epoch);
  return state.borders.Save();
}

absl::Status SegmentStore::Impl::MoveAside(const absl::Status& why) {
  state.CloseTable();
  PREFIXD_ASSIGN_OR_RETURN(const std::string folder, state.directory->MoveAside());
  findings.moved_aside = folder;
  findings.moved_why = std::string(why.message());
  return absl::OkStatus();
}

void SegmentStore::Impl::LearnLayout(const TableDb& table, uint64_t sequence,
                                     const block::PageName& name, uint64_t check,
                                     size_t page_bytes) {
  std::vector<std::byte> again(page_bytes);
  const DirectReads::Result result = state.direct_reads.Read(table, sequence, name, check, again);
  if (result != DirectReads::Result::kElsewhere || !state.direct_reads.LeaveToRocksDb(sequence))
    return;
  if (state.table_options.on_unknown_format) {
    state.table_options.on_unknown_format(
        absl::StrCat("page ", sequence, " is not where its segment notes it"));
  }
}

absl::StatusOr<std::unique_ptr<SegmentStore>> SegmentStore::Open(const Options& options) {
  auto impl = std::make_unique<Impl>(options);
  StoreState& state = impl->state;
  state.key_id = options.key_id;
  state.table_options = {.directory = options.directory,
                         .direct_io = options.direct_io,
                         .block_cache_bytes = options.block_cache_bytes,
                         .files = options.files,
                         .on_unknown_format = options.on_unknown_format};
  state.reads_directly = options.reads_directly;
  PREFIXD_ASSIGN_OR_RETURN(state.directory,
                           StoreDirectory::Open(options.directory, options.lock_wait));
  // Waits for RocksDB's own lock, which RocksDB asks for only once.
  const std::string database_lock = options.directory + "/LOCK";
  PREFIXD_RETURN_IF_ERROR(
      base::AwaitRecordLock(database_lock, "segment store: " + database_lock, options.lock_wait));
  PREFIXD_ASSIGN_OR_RETURN(impl->borders_found, state.borders.Load());
  PREFIXD_RETURN_IF_ERROR(state.directory->RemoveIncoming());
  PREFIXD_RETURN_IF_ERROR(CheckFree(*state.directory, options.open_free_bytes));
  PREFIXD_RETURN_IF_ERROR(state.TryWriting(OpenRoomBytes(*state.directory)));
  state.table_options.direct_io = options.direct_io && state.directory->SupportsDirectIo();
  absl::Status opened = impl->OpenDatabase(options);
  if (absl::IsDataLoss(opened)) {
    PREFIXD_RETURN_IF_ERROR(impl->MoveAside(opened));
    opened = impl->OpenDatabase(options);
  }
  if (absl::IsDataLoss(opened)) return absl::UnavailableError(opened.message());
  PREFIXD_RETURN_IF_ERROR(opened);
  return std::unique_ptr<SegmentStore>(new SegmentStore(std::move(impl)));
}

ClearedBorders SegmentStore::Borders() const { return impl_->state.borders.borders(); }

absl::Status SegmentStore::AddBorders(const ClearedBorders& more) {
  const std::vector<SegmentInfo> segments = Segments();
  impl_->state.borders.Add(more, segments.empty() ? 0 : segments.front().first_sequence);
  return SaveBorders();
}

absl::Status SegmentStore::SaveBorders() { return impl_->state.borders.Save(); }

bool SegmentStore::BordersSaved() const { return impl_->state.borders.saved(); }

SegmentStore::Kept SegmentStore::DamagedCopies() const {
  const StoreDirectory::Damaged damaged = impl_->state.directory->DamagedCopies();
  return {.count = damaged.count, .bytes = damaged.bytes};
}

absl::Status SegmentStore::RemoveDamaged() { return impl_->state.directory->RemoveDamaged(); }

absl::Status SegmentStore::PutMeta(const std::string& key, const std::string& value) {
  rocksdb::WriteBatch batch;
  batch.Put(kMetaPrefix + key, value);
  PREFIXD_ASSIGN_OR_RETURN(const TableDbPtr table, impl_->state.TableForChanges());
  return table->WriteMeta(&batch, absl::StrCat("cannot write metadata ", key));
}

absl::Status SegmentStore::DeleteMeta(std::span<const std::string> keys) {
  rocksdb::WriteBatch batch;
  for (const std::string& key : keys) batch.Delete(kMetaPrefix + key);
  PREFIXD_ASSIGN_OR_RETURN(const TableDbPtr table, impl_->state.TableForChanges());
  return table->WriteMeta(&batch, absl::StrCat("cannot delete metadata of ", keys.size(), " keys"));
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
  // A seek: the key is known only up to the header in it.
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

absl::Status SegmentStore::ReadAndVerify(uint64_t sequence, const block::PageName& name,
                                         uint64_t check, std::span<std::byte> page) const {
  block::PageHeader header;
  PREFIXD_RETURN_IF_ERROR(ReadPage(sequence, &header, page));
  return block::VerifyPage(header, name, check, page);
}

absl::Status SegmentStore::ReadPage(uint64_t sequence, const block::PageName& name, uint64_t check,
                                    std::span<std::byte> page) const {
  PREFIXD_ASSIGN_OR_RETURN(const TableDbPtr table, impl_->state.Table());
  StoreState& state = impl_->state;
  using Result = DirectReads::Result;
  const Result direct = state.reads_directly
                            ? state.direct_reads.Read(*table, sequence, name, check, page)
                            : Result::kNone;
  if (direct == Result::kRead) return absl::OkStatus();
  absl::Status read = ReadAndVerify(sequence, name, check, page);
  // One damaged read is no loss: it is read once more.
  if (absl::IsDataLoss(read)) read = ReadAndVerify(sequence, name, check, page);
  PREFIXD_RETURN_IF_ERROR(read);
  if (direct == Result::kElsewhere) impl_->LearnLayout(*table, sequence, name, check, page.size());
  return absl::OkStatus();
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
  // Records first: the next Open removes pages without records, but a record without pages would
  // promise pages that are gone.
  PREFIXD_RETURN_IF_ERROR(DeleteFiles(*table, table->records, segment));
  PREFIXD_RETURN_IF_ERROR(DeleteFiles(*table, table->pages, segment));
  state.direct_reads.Drop(segment);
  base::MutexLock lock(state.mutex);
  std::erase_if(state.segments, same);
  return absl::OkStatus();
}

uint64_t SegmentStore::FileBytes() const { return impl_->state.directory->AllocatedBytes(); }

uint64_t SegmentStore::FreeBytes() const { return impl_->state.directory->FreeBytes(); }

std::chrono::nanoseconds SegmentStore::longest_hold() const {
  return impl_->state.longest_hold.longest();
}

uint64_t SegmentStore::MemoryBytes() const {
  TableDbPtr table;
  {
    base::MutexLock lock(impl_->state.mutex);
    table = impl_->state.table_db;
  }
  return (table == nullptr ? 0 : table->MemoryBytes()) + impl_->state.writer_bytes +
         impl_->state.reader_bytes + impl_->state.direct_reads.MemoryBytes();
}

uint64_t SegmentStore::last_sequence() const { return impl_->state.last_sequence; }

const SegmentStore::Findings& SegmentStore::findings() const { return impl_->findings; }

bool SegmentStore::direct_io() const { return impl_->state.table_options.direct_io; }

}  // namespace prefixd::ssd
