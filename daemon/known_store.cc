#include "daemon/known_store.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <filesystem>
#include <optional>
#include <sstream>

#include "base/own_file.h"
#include "base/status.h"
#include "cache/cache.h"
#include "os/files.h"

namespace prefixd::daemon {
namespace {

constexpr size_t kMostBytes = 256;

// Returns the id of the filesystem that holds `path`, or its nearest ancestor that exists.
absl::StatusOr<uint64_t> FilesystemOf(const std::string& path) {
  std::filesystem::path existing = std::filesystem::absolute(path);
  std::error_code error;
  while (!std::filesystem::exists(existing, error) && existing.has_relative_path()) {
    existing = existing.parent_path();
  }
  struct statvfs disk {};
  if (::statvfs(existing.c_str(), &disk) != 0) {
    return absl::UnavailableError(
        absl::StrCat("directory: cannot look at the disk of ", existing.string()));
  }
  return uint64_t{disk.f_fsid};
}

bool MayGoAway(const std::string& directory) {
  struct stat root {
  }, here{};
  if (::stat("/", &root) != 0 || ::stat(directory.c_str(), &here) != 0) return false;
  const std::optional<os::MountFacts> disk = os::MountOf(directory);
  return disk.has_value() && here.st_dev != root.st_dev && !disk->in_memory;
}

}  // namespace

absl::StatusOr<std::string> MissingStore(const std::string& known, const std::string& directory) {
  if (known.empty()) return std::string();
  PREFIXD_ASSIGN_OR_RETURN(const std::optional<std::string> text,
                           base::ReadOwnFile(known, kMostBytes));
  std::istringstream file(text.value_or(""));
  std::string instance;
  uint64_t filesystem = 0;
  if (!(file >> instance >> filesystem)) return std::string();
  if (!cache::Cache::StoreInstance(directory).empty()) return std::string();
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t now, FilesystemOf(directory));
  if (now == filesystem) return std::string();
  return absl::StrCat("store ", instance, " is not in ", directory,
                      ", which is on another filesystem than it was: is its disk mounted? To start "
                      "a new store there remove ",
                      known);
}

absl::Status RememberStore(const std::string& known, const std::string& directory,
                           const std::string& instance) {
  if (known.empty()) return absl::OkStatus();
  std::error_code error;
  if (!MayGoAway(directory)) {
    std::filesystem::remove(known, error);
    return absl::OkStatus();
  }
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t filesystem, FilesystemOf(directory));
  absl::Status status = base::CheckWay(known, "ssd-id-file: " + known);
  if (status.ok()) {
    std::filesystem::create_directories(std::filesystem::path(known).parent_path(), error);
    status = base::WriteOwnFile(known, absl::StrCat(instance, "\n", filesystem, "\n"));
  }
  if (status.ok()) return status;
  return absl::UnavailableError(
      absl::StrCat("ssd: an unmounted disk will not be told from a new directory: cannot write ",
                   known, ": ", std::string(status.message())));
}

}  // namespace prefixd::daemon
