#include "ssd/store_metadata.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "rocksdb/write_batch.h"

#include "base/bytes.h"
#include "base/status.h"
#include "ssd/segment_store.h"

namespace prefixd::ssd {
namespace {

std::string Encode(uint32_t value) {
  base::ByteWriter writer;
  writer.Fixed(value);
  return writer.Take();
}

// nullopt when `key` is absent.
absl::StatusOr<std::optional<uint32_t>> ReadNumber(rocksdb::DB* db, const std::string& key) {
  std::string value;
  const rocksdb::Status status = db->Get(rocksdb::ReadOptions(), key, &value);
  if (status.IsNotFound()) return std::optional<uint32_t>();
  PREFIXD_RETURN_IF_ERROR(FromRocks(status, absl::StrCat("cannot read ", key)));
  if (value.size() != sizeof(uint32_t)) {
    return absl::DataLossError(
        absl::StrCat("segment store: ", key, " has ", value.size(), " bytes, expected 4"));
  }
  return std::optional<uint32_t>(base::ByteReader(base::AsBytes(value)).Fixed<uint32_t>());
}

}  // namespace

absl::StatusOr<std::optional<uint32_t>> ReadFormatVersion(const std::string& directory,
                                                          const FileLayer* files) {
  if (access(absl::StrCat(directory, "/CURRENT").c_str(), F_OK) != 0) {
    return std::optional<uint32_t>();
  }
  // Read-only and with the default column family alone: a later format may have others, and a store
  // that is not ours must stay as it is.
  const std::unique_ptr<rocksdb::Env> env = TableEnv(files);
  rocksdb::Options options;
  options.env = env.get();
  options.paranoid_checks = false;
  options.max_open_files = 16;
  options.info_log_level = rocksdb::InfoLogLevel::ERROR_LEVEL;
  rocksdb::DB* opened = nullptr;
  PREFIXD_RETURN_IF_ERROR(FromRocks(rocksdb::DB::OpenForReadOnly(options, directory, &opened),
                                    absl::StrCat("cannot open ", directory)));
  const std::unique_ptr<rocksdb::DB> db(opened);
  PREFIXD_ASSIGN_OR_RETURN(const std::optional<uint32_t> version,
                           ReadNumber(db.get(), kFormatVersionKey));
  // Absent: killed between creating the database and its first write, which is the version.
  if (version.value_or(kStoreFormatVersion) <= kStoreFormatVersion) return version;
  return absl::FailedPreconditionError(
      absl::StrCat("segment store: directory ", directory, " has format version ", *version,
                   ", this prefixd reads version ", kStoreFormatVersion));
}

absl::StatusOr<uint32_t> RaiseEpoch(TableDb* table_db, uint64_t last_on_disk) {
  PREFIXD_ASSIGN_OR_RETURN(const std::optional<uint32_t> last,
                           ReadNumber(table_db->db.get(), kEpochKey));
  const uint64_t epoch = std::max<uint64_t>(last.value_or(0), last_on_disk >> kCounterBits) + 1;
  if (epoch > kMaxEpoch) {
    return absl::FailedPreconditionError(
        absl::StrCat("segment store: directory ", table_db->db->GetName(),
                     " has used all its epochs, limit ", kMaxEpoch, ": start a new directory"));
  }
  rocksdb::WriteBatch batch;
  batch.Put(kFormatVersionKey, Encode(kStoreFormatVersion));
  batch.Put(kEpochKey, Encode(static_cast<uint32_t>(epoch)));
  PREFIXD_RETURN_IF_ERROR(table_db->WriteMeta(&batch, "cannot raise epoch"));
  return static_cast<uint32_t>(epoch);
}

}  // namespace prefixd::ssd
