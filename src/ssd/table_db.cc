#include "ssd/table_db.h"

#include <unistd.h>

#include <utility>
#include <vector>

#include "rocksdb/flush_block_policy.h"
#include "rocksdb/listener.h"
#include "rocksdb/table.h"

#include "base/bytes.h"
#include "base/status.h"
#include "ssd/index_cache.h"
#include "ssd/table_files.h"
#include "ssd/table_log.h"

namespace prefixd::ssd {
namespace {

constexpr const char* kPagesFamily = "pages";
constexpr const char* kRecordsFamily = "records";
// Table files beyond these are opened again when they are read: three small reads, no more memory.
constexpr int kMaxOpenFiles = 512;
// What direct_read.h knows. Later versions of RocksDB write another one by default.
constexpr uint32_t kTableFormatVersion = 5;
// More than a block has beside its value.
constexpr uint64_t kBlockOverhead = 4096;
// Appends that do not fit pass without a copy; write_behind.h makes the one copy.
constexpr size_t kAppendBufferBytes = 64 << 10;

class Listener final : public rocksdb::EventListener {
 public:
  explicit Listener(std::shared_ptr<TableEvents> events) : events_(std::move(events)) {}
  void OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status*) override {
    events_->changes_failed = true;
  }
  void OnExternalFileIngested(rocksdb::DB*,
                              const rocksdb::ExternalFileIngestionInfo& info) override {
    if (info.cf_name != kPagesFamily) return;
    base::MutexLock lock(events_->mutex);
    events_->ingested[info.external_file_path] = info.internal_file_path;
  }

 private:
  const std::shared_ptr<TableEvents> events_;
};

rocksdb::DBOptions MakeDbOptions(bool direct_io, rocksdb::Env* env) {
  rocksdb::DBOptions options;
  options.env = env;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  // A missing or damaged table file is a few missing pages, not a store that cannot be opened.
  options.paranoid_checks = false;
  options.use_direct_reads = direct_io;
  options.use_direct_io_for_flush_and_compaction = direct_io;
  options.max_open_files = kMaxOpenFiles;
  options.max_background_jobs = 2;
  options.max_manifest_file_size = 16 << 20;
  options.manifest_preallocation_size = 64 << 10;  // 4 MiB by default, which counts as ours
  options.max_total_wal_size = 1 << 20;
  options.writable_file_max_buffer_size = kAppendBufferBytes;
  options.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  options.keep_log_file_num = 2;         // of those that earlier versions left
  options.max_bgerror_resume_count = 0;  // store_state.h opens the database anew
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

class OneValueABlock final : public rocksdb::FlushBlockPolicy {
 public:
  bool Update(const rocksdb::Slice&, const rocksdb::Slice&) override {
    return std::exchange(begun_, true);
  }

 private:
  bool begun_ = false;
};

class OneValueABlockFactory final : public rocksdb::FlushBlockPolicyFactory {
 public:
  const char* Name() const override { return "OneValueABlock"; }
  rocksdb::FlushBlockPolicy* NewFlushBlockPolicy(const rocksdb::BlockBasedTableOptions&,
                                                 const rocksdb::BlockBuilder&) const override {
    return new OneValueABlock();  // RocksDB deletes it
  }
};

rocksdb::BlockBasedTableOptions MakeTableFormat(const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::BlockBasedTableOptions format;
  format.format_version = kTableFormatVersion;
  format.checksum = rocksdb::kXXH3;  // Debian's build has only table-driven CRC32C: 1 GB/s
  // One value a block: a read fetches and verifies its own value only, and damage to one value
  // leaves its neighbours readable.
  format.block_size = 1;
  format.block_cache = cache;
  format.cache_index_and_filter_blocks = true;  // else readers grow outside the block cache
  return format;
}

rocksdb::ColumnFamilyOptions MakeSegmentFamilyOptions(
    const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::ColumnFamilyOptions options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(MakeTableFormat(cache)));
  options.compression = rocksdb::kNoCompression;  // quantized bytes do not compress
  // Ingest puts files that overlap nothing into the bottom level, where DeleteFilesInRange finds
  // them (it spares level 0); nothing is ever rewritten.
  options.num_levels = 2;
  options.disable_auto_compactions = true;
  options.write_buffer_size = 64 << 10;  // never used
  return options;
}

rocksdb::ColumnFamilyOptions MakeMetaFamilyOptions(const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::BlockBasedTableOptions format;
  format.format_version = kTableFormatVersion;
  format.checksum = rocksdb::kXXH3;
  format.block_cache = cache;
  rocksdb::ColumnFamilyOptions options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(format));
  options.compression = rocksdb::kNoCompression;
  options.write_buffer_size = 256 << 10;
  return options;
}

}  // namespace

std::unique_ptr<rocksdb::Env> TableEnv(const FileLayer* files, OnUnknownFormat on_unknown_format) {
  rocksdb::Env* below = files != nullptr ? files->env.get() : rocksdb::Env::Default();
  return rocksdb::NewCompositeEnv(
      TableFilesOver(below->GetFileSystem(), std::move(on_unknown_format)));
}

absl::Status FromRocks(const rocksdb::Status& status, const std::string& what) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat("segment store: ", what, ": ", status.ToString());
  if (status.IsNotFound()) return absl::NotFoundError(message);
  if (status.IsPathNotFound()) return absl::DataLossError(message);  // an IOError too, so first
  if (status.IsIOError() || status.IsBusy() || status.IsTimedOut() || status.IsAborted() ||
      status.IsShutdownInProgress() || status.IsIncomplete() || status.IsTryAgain()) {
    return absl::UnavailableError(message);
  }
  // A flipped bit in a footer shows as "not supported" or "invalid argument" too.
  return absl::DataLossError(message);
}

absl::Status FromOpening(const rocksdb::Status& status, const std::string& directory) {
  const std::string what = absl::StrCat("cannot open ", directory);
  const bool damaged = status.IsCorruption() || status.IsNotFound() ||
                       (status.IsIOError() && status.IsPathNotFound());
  if (status.ok() || damaged) return FromRocks(status, what);
  return absl::UnavailableError(absl::StrCat("segment store: ", what, ": ", status.ToString()));
}

std::string SequenceKey(uint64_t sequence) {
  std::string key(kSequenceKeyBytes, '\0');
  for (size_t i = 0; i < key.size(); ++i) {
    key[i] = static_cast<char>(static_cast<uint8_t>(sequence >> (56 - 8 * i)));
  }
  return key;
}

std::string PageKey(uint64_t sequence, const block::PageHeader& header) {
  std::string key = SequenceKey(sequence);
  key.append(reinterpret_cast<const char*>(&header), sizeof(header));
  return key;
}

uint64_t SequenceOf(const rocksdb::Slice& key) {
  if (key.size() != kSequenceKeyBytes && key.size() != kPageKeyBytes) return 0;
  uint64_t sequence = 0;
  for (size_t i = 0; i < kSequenceKeyBytes; ++i) {
    sequence = sequence << 8 | static_cast<uint8_t>(key[i]);
  }
  return sequence;
}

absl::StatusOr<std::unique_ptr<TableDb>> TableDb::Open(const TableDbOptions& options) {
  auto table_db = std::make_unique<TableDb>();
  table_db->direct_io = options.direct_io;
  table_db->files = options.files;
  table_db->env = TableEnv(options.files.get(), options.on_unknown_format);
  table_db->block_cache = NewIndexCache(options.block_cache_bytes);
  rocksdb::DBOptions db_options = MakeDbOptions(options.direct_io, table_db->env.get());
  db_options.info_log = OpenTableLog(options.directory);
  db_options.listeners = {std::make_shared<Listener>(table_db->events)};
  const rocksdb::ColumnFamilyOptions segment_options =
      MakeSegmentFamilyOptions(table_db->block_cache);
  table_db->table_options = rocksdb::Options(db_options, segment_options);
  const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {rocksdb::kDefaultColumnFamilyName, MakeMetaFamilyOptions(table_db->block_cache)},
      {kPagesFamily, segment_options},
      {kRecordsFamily, segment_options}};
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  PREFIXD_RETURN_IF_ERROR(
      FromOpening(rocksdb::DB::Open(db_options, options.directory, families, &handles, &db),
                  options.directory));
  table_db->db.reset(db);
  table_db->meta = handles[0];
  table_db->pages = handles[1];
  table_db->records = handles[2];
  return table_db;
}

TableDb::~TableDb() {
  if (db == nullptr) return;
  for (rocksdb::ColumnFamilyHandle* family : {meta, pages, records}) {
    db->DestroyColumnFamilyHandle(family);
  }
  db.reset();
  closed->Set();
}

rocksdb::ReadOptions TableDb::read_options() const {
  rocksdb::ReadOptions options;
  options.verify_checksums = true;
  options.fill_cache = false;  // values would push the index blocks out
  return options;
}

rocksdb::EnvOptions TableDb::file_options() const {
  rocksdb::EnvOptions options(table_options);
  options.use_direct_writes = direct_io;  // SstFileWriter does not look at the database's options
  return options;
}

rocksdb::Options TableDb::table_options_for(uint64_t value_bytes) const {
  rocksdb::BlockBasedTableOptions format = MakeTableFormat(block_cache);
  // RocksDB allocates each block anew with this size and grows it by copying.
  format.block_size = base::AlignUp(value_bytes + kBlockOverhead, kBlockOverhead);
  format.flush_block_policy_factory = std::make_shared<OneValueABlockFactory>();
  rocksdb::Options options = table_options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(format));
  return options;
}

std::string TableDb::TakeIngested(const std::string& incoming_path) {
  base::MutexLock lock(events->mutex);
  const auto node = events->ingested.extract(incoming_path);
  return node.empty() ? std::string() : node.mapped();
}

absl::Status TableDb::WriteMeta(rocksdb::WriteBatch* batch, const std::string& what) {
  base::MutexLock lock(meta_mutex);
  if (events->changes_failed) {
    return absl::UnavailableError(
        absl::StrCat("segment store: ", what, ": a change failed before"));
  }
  rocksdb::WriteOptions options;
  options.sync = true;
  const rocksdb::Status status = db->Write(options, batch);
  if (!status.ok()) events->changes_failed = true;
  return FromRocks(status, what);
}

uint64_t TableDb::MemoryBytes() const {
  uint64_t bytes = 0;
  db->GetIntProperty(rocksdb::DB::Properties::kBlockCacheUsage, &bytes);  // all families' one
  for (const std::string& property : {rocksdb::DB::Properties::kEstimateTableReadersMem,
                                      rocksdb::DB::Properties::kSizeAllMemTables}) {
    uint64_t value = 0;
    if (db->GetAggregatedIntProperty(property, &value)) bytes += value;
  }
  return bytes;
}

}  // namespace prefixd::ssd
