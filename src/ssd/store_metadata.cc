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

constexpr int kOldCounterBits = 40;  // of a u32 epoch

template <typename T>
std::string Encode(T value) {
  base::ByteWriter writer;
  writer.Fixed(value);
  return writer.Take();
}

// Empty when `key` is absent.
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
  base::ByteReader reader(base::AsBytes(value));
  if (value.size() == sizeof(uint64_t)) return reader.Fixed<uint64_t>();
  if (value.size() != sizeof(uint32_t)) return WrongSize(kEpochKey, value.size(), "8 or 4");
  return uint64_t{reader.Fixed<uint32_t>()} << (kOldCounterBits - kCounterBits);
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
  PREFIXD_ASSIGN_OR_RETURN(const std::optional<uint32_t> version, ReadVersion(db.get()));
  // Absent: killed between creating the database and its first write, which is the version.
  if (version.value_or(kStoreFormatVersion) <= kStoreFormatVersion) return version;
  return absl::FailedPreconditionError(
      absl::StrCat("segment store: directory ", directory, " has format version ", *version,
                   ", this prefixd reads version ", kStoreFormatVersion));
}

absl::StatusOr<uint64_t> RaiseEpoch(TableDb* table_db, uint64_t last_on_disk) {
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t last, ReadEpoch(table_db->db.get()));
  const uint64_t epoch = std::max(last, last_on_disk >> kCounterBits) + 1;
  if (epoch > kMaxEpoch) {
    return absl::FailedPreconditionError(
        absl::StrCat("segment store: directory ", table_db->db->GetName(),
                     " has used all its epochs, limit ", kMaxEpoch, ": start a new directory"));
  }
  rocksdb::WriteBatch batch;
  batch.Put(kFormatVersionKey, Encode(kStoreFormatVersion));
  batch.Put(kEpochKey, Encode(epoch));
  PREFIXD_RETURN_IF_ERROR(table_db->WriteMeta(&batch, "cannot raise epoch"));
  return epoch;
}

}  // namespace prefixd::ssd
