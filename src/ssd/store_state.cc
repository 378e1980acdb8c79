#include "ssd/store_state.h"

#include <chrono>

#include "base/status.h"

namespace prefixd::ssd {
namespace {

// Longer than a read or a segment takes; who waits may itself be one of those that use it.
constexpr auto kCloseWait = std::chrono::seconds(2);

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
  // The change that failed may have been made after all.
  std::map<uint64_t, std::string> pages_paths;
  PREFIXD_ASSIGN_OR_RETURN(std::vector<SegmentInfo> found, FindSegments(*opened, &pages_paths));
  page_files.Set(found, pages_paths);
  base::MutexLock lock(mutex);
  segments = std::move(found);
  table_db = opened;
  return opened;
}

absl::StatusOr<TableDbPtr> StoreState::TableForChanges() {
  {
    PREFIXD_ASSIGN_OR_RETURN(TableDbPtr table, Table());
    if (!table->events->changes_failed) return table;
    PREFIXD_RETURN_IF_ERROR(TryWriting());
    base::MutexLock lock(mutex);
    if (table_db == table) {
      closed = table->closed;
      table_db.reset();
    }
  }
  return Table();
}

absl::Status StoreState::TryWriting() const {
  const std::string path = directory->IncomingPath("try");
  rocksdb::Env* const env =
      table_options.files != nullptr ? table_options.files->env.get() : rocksdb::Env::Default();
  const rocksdb::Status written =
      rocksdb::WriteStringToFile(env, std::string(4096, 't'), path, /*should_sync=*/true);
  env->DeleteFile(path).PermitUncheckedError();
  return FromRocks(written, "the disk still fails");
}

}  // namespace prefixd::ssd
