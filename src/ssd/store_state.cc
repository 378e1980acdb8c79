#include "ssd/store_state.h"

#include <algorithm>
#include <chrono>

#include "base/size.h"
#include "base/status.h"

namespace prefixd::ssd {
namespace {

// Longer than a read or a segment takes. Not for ever: the thread that waits may itself use the
// database.
constexpr auto kCloseWait = std::chrono::seconds(2);
constexpr uint64_t kTryBytes = 4096;

rocksdb::Status WriteAndSync(rocksdb::Env* env, const std::string& path, uint64_t bytes) {
  std::unique_ptr<rocksdb::WritableFile> file;
  rocksdb::Status status = env->NewWritableFile(path, &file, rocksdb::EnvOptions());
  const std::string part(std::min<uint64_t>(bytes, 256 << 10), 't');
  for (uint64_t done = 0; status.ok() && done < bytes; done += part.size()) {
    status = file->Append(rocksdb::Slice(part.data(), std::min<size_t>(bytes - done, part.size())));
  }
  if (status.ok()) status = file->Sync();
  if (file != nullptr && status.ok()) status = file->Close();
  return status;
}

}  // namespace

absl::StatusOr<TableDbPtr> StoreState::Table() {
  {
    base::MutexLock lock(mutex);
    if (table_db != nullptr) return table_db;
  }
  base::MutexLock opening(open_mutex);
  std::shared_ptr<ClosedFlag> before;
  {
    base::MutexLock lock(mutex);
    if (table_db != nullptr) return table_db;
    before = closed;
  }
  if (before != nullptr && !before->Wait(std::chrono::steady_clock::now() + kCloseWait)) {
    return absl::UnavailableError(
        "segment store: the database is in use and closes after an error of the disk");
  }
  PREFIXD_ASSIGN_OR_RETURN(const TableDbPtr opened, TableDb::Open(table_options));
  // Finds the segments anew: the change that failed may have been made after all.
  std::map<uint64_t, std::string> pages_paths;
  PREFIXD_ASSIGN_OR_RETURN(std::vector<SegmentInfo> found, FindSegments(*opened, &pages_paths));
  direct_reads.Set(found, pages_paths);
  base::MutexLock lock(mutex);
  segments = std::move(found);
  table_db = opened;
  return opened;
}

absl::StatusOr<TableDbPtr> StoreState::TableForChanges() {
  {
    PREFIXD_ASSIGN_OR_RETURN(TableDbPtr table, Table());
    if (!table->events->changes_failed) return table;
    PREFIXD_RETURN_IF_ERROR(TryWriting(kTryBytes));
    base::MutexLock lock(mutex);
    if (table_db == table) {
      closed = table->closed;
      table_db.reset();
    }
  }
  return Table();
}

void StoreState::CloseTable() {
  base::MutexLock lock(mutex);
  segments.clear();
  table_db.reset();
}

absl::Status StoreState::TryWriting(uint64_t bytes) const {
  const std::string path = directory->IncomingPath("try");
  rocksdb::Env* const env =
      table_options.files != nullptr ? table_options.files->env.get() : rocksdb::Env::Default();
  const rocksdb::Status written = WriteAndSync(env, path, bytes);
  env->DeleteFile(path).PermitUncheckedError();
  return FromRocks(written, absl::StrCat("the disk does not take ", base::FormatBytes(bytes),
                                         " in ", directory->path()));
}

}  // namespace prefixd::ssd
