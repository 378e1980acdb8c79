#include "ssd/store_metadata.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "rocksdb/write_batch.h"

#include "base/bytes.h"
#include "base/status.h"
#include "ssd/segment_store.h"
#include "ssd/table_log.h"

namespace prefixd::ssd {
namespace {

template <typename T>
std::string Encode(T value) {
  base::ByteWriter writer;
  writer.Fixed(value);
  return writer.Take();
}

// Returns an empty string if `key` is absent.
absl::StatusOr<std::string> ReadValue(rocksdb::DB* db, const std::string& key) {
  std::string value;
  const rocksdb::Status status = db->Get(rocksdb::ReadOptions(), key, &value);
  if (status.IsNotFound()) return std::string();
  PREFIXD_RETURN_IF_ERROR(FromRocks(status, absl::StrCat("cannot read ", key)));
  return value;
}

absl::Status WrongSize(const std::string& key, size_t bytes, const char* expected) {
  return absl::DataLossError(
      absl::StrCat("segment store: ", key, " has ", bytes, " bytes, expected ", expected));
}

absl::StatusOr<std::optional<uint32_t>> ReadVersion(rocksdb::DB* db) {
  PREFIXD_ASSIGN_OR_RETURN(const std::string value, ReadValue(db, kFormatVersionKey));
  if (value.empty()) return std::optional<uint32_t>();
  if (value.size() != sizeof(uint32_t)) return WrongSize(kFormatVersionKey, value.size(), "4");
  return std::optional<uint32_t>(base::ByteReader(base::AsBytes(value)).Fixed<uint32_t>());
}

absl::StatusOr<uint64_t> ReadEpoch(rocksdb::DB* db) {
  PREFIXD_ASSIGN_OR_RETURN(const std::string value, ReadValue(db, kEpochKey));
  if (value.empty()) return uint64_t{0};
  if (value.size() != sizeof(uint64_t)) return WrongSize(kEpochKey, value.size(), "8");
  return base::ByteReader(base::AsBytes(value)).Fixed<uint64_t>();
}

}  // namespace

absl::StatusOr<std::optional<FoundStore>> ReadFound(const std::string& directory,
                                                    const FileLayer* files) {
  if (access(absl::StrCat(directory, "/CURRENT").c_str(), F_OK) != 0) {
    return std::nullopt;
  }
  // Opens it read-only and with the default column family alone: a later format may have others,
  // and a store that is not ours must stay as it is.
  const std::unique_ptr<rocksdb::Env> env = TableEnv(files);
  rocksdb::Options options;
  options.env = env.get();
  options.paranoid_checks = false;
  options.max_open_files = 16;
  options.info_log = NoTableLog();  // nothing is changed, the log neither
  rocksdb::DB* opened = nullptr;
  PREFIXD_RETURN_IF_ERROR(
      FromOpening(rocksdb::DB::OpenForReadOnly(options, directory, &opened), directory));
  const std::unique_ptr<rocksdb::DB> db(opened);
  PREFIXD_ASSIGN_OR_RETURN(const std::optional<uint32_t> version, ReadVersion(db.get()));
  // Absent: prefixd was killed between creating the database and its first write, which has the
  // version.
  if (!version.has_value()) return std::nullopt;
  if (*version <= kStoreFormatVersion) {
    PREFIXD_ASSIGN_OR_RETURN(std::string key_id, ReadValue(db.get(), kKeyIdKey));
    return FoundStore{.version = *version, .key_id = std::move(key_id)};
  }
  return absl::FailedPreconditionError(
      absl::StrCat("segment store: directory ", directory, " has format version ", *version,
                   ", this prefixd reads version ", kStoreFormatVersion));
}

absl::StatusOr<StoreKeys> ReadStoreKeys(const TableDb& table_db) {
  StoreKeys keys;
  PREFIXD_ASSIGN_OR_RETURN(keys.epoch, ReadEpoch(table_db.db.get()));
  PREFIXD_ASSIGN_OR_RETURN(const std::string borders, ReadValue(table_db.db.get(), kBordersKey));
  keys.borders = !borders.empty();
  return keys;
}

absl::StatusOr<uint64_t> RaiseEpoch(TableDb* table_db, uint64_t last_known,
                                    const std::optional<base::Hash128>& key_id) {
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t last, ReadEpoch(table_db->db.get()));
  const uint64_t epoch = std::max(last, last_known >> kCounterBits) + 1;
  if (epoch > kMaxEpoch) {
    return absl::FailedPreconditionError(
        absl::StrCat("segment store: directory ", table_db->db->GetName(),
                     " has used all its epochs, limit ", kMaxEpoch, ": start a new directory"));
  }
  rocksdb::WriteBatch batch;
  batch.Put(kFormatVersionKey, Encode(kStoreFormatVersion));
  if (key_id.has_value()) batch.Put(kKeyIdKey, std::string(base::AsText(*key_id)));
  batch.Put(kEpochKey, Encode(epoch));
  batch.Put(kBordersKey, "1");
  PREFIXD_RETURN_IF_ERROR(table_db->WriteMeta(&batch, "cannot raise epoch"));
  return epoch;
}

}  // namespace prefixd::ssd
