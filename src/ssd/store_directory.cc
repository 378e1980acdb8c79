#include "ssd/store_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/own_file.h"
#include "base/status.h"
#include "os/files.h"
#include "ssd/segment_store.h"

namespace prefixd::ssd {
namespace {

constexpr const char* kLockName = "prefixd.lock";
constexpr const char* kInstanceName = "prefixd.instance";
constexpr const char* kKeyName = "prefixd.key";  // cache/hash_key.h
constexpr size_t kProbeBytes = 4096;

bool IsOurName(const std::string& name) {
  return name == kLockName || name == kInstanceName || name == kKeyName || name == kBordersName ||
         name == kSecondBordersName;
}

absl::Status Failed(const char* what, const std::string& path, int error) {
  return absl::UnavailableError(
      absl::StrCat("segment store: cannot ", what, " ", path, ": ", strerror(error)));
}

// For what shows whether this user may have the directory at all. Once that is known, a refused
// call is a failing disk like any other, and may succeed later.
absl::Status NotAllowed(const char* what, const std::string& path, int error) {
  const absl::Status failed = Failed(what, path, error);
  const bool denied = error == EACCES || error == EPERM;
  return denied ? absl::PermissionDeniedError(failed.message()) : failed;
}

absl::StatusOr<std::vector<std::string>> ListNames(const std::string& path) {
  DIR* stream = opendir(path.c_str());
  if (stream == nullptr) return Failed("list", path, errno);
  std::vector<std::string> names;
  while (const dirent* entry = readdir(stream)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(stream);
  return names;
}

// Refuses links and files of other users: what RocksDB opens here by name must not lead elsewhere.
absl::Status CheckEntry(const std::string& path, const std::string& name) {
  struct stat info;
  if (name == "lost+found" || lstat(absl::StrCat(path, "/", name).c_str(), &info) != 0) {
    return absl::OkStatus();
  }
  if (S_ISLNK(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("segment store: directory ", path, " holds ",
                                                      name, ", which is a link: remove it"));
  }
  if (info.st_uid == geteuid()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "segment store: directory ", path, " holds ", name, ", which belongs to user ", info.st_uid,
      ", this is ", geteuid(), ": run prefixd as that user, or chown -R the directory"));
}

}  // namespace

// Refuses a directory that is neither empty nor a store: a mistyped path would be made 0700 and
// filled. Any one of our names makes it a store, which may have lost the others.
absl::Status CheckOurs(const std::string& path) {
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListNames(path));
  std::string foreign;
  bool is_store = false;
  for (const std::string& name : names) {
    is_store |= IsOurName(name);
    if (name != "lost+found") foreign = name;
  }
  for (const std::string& name : names) {
    if (is_store) PREFIXD_RETURN_IF_ERROR(CheckEntry(path, name));
  }
  if (is_store || foreign.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("segment store: directory ", path,
                   " is neither empty nor a prefixd store, it holds ", foreign));
}

namespace {

absl::Status MakePrivateDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0) return absl::OkStatus();
  if (errno != EEXIST) return NotAllowed("create directory", path, errno);
  PREFIXD_ASSIGN_OR_RETURN(
      const int fd, base::OpenOwnFolder(path, absl::StrCat("segment store: directory ", path)));
  if (fd < 0) return NotAllowed("open", path, errno);
  absl::Status status = CheckOurs(path);
  if (status.ok() && fchmod(fd, 0700) != 0) status = NotAllowed("make private", path, errno);
  close(fd);
  return status;
}

void AddAllocated(const std::string& path, std::set<std::pair<dev_t, ino_t>>* seen,
                  uint64_t* bytes) {
  struct stat info;
  // A file may vanish between readdir and lstat: RocksDB deletes while we count.
  if (lstat(path.c_str(), &info) != 0) return;
  if (seen->emplace(info.st_dev, info.st_ino).second) {
    *bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  if (!S_ISDIR(info.st_mode)) return;
  const absl::StatusOr<std::vector<std::string>> names = ListNames(path);
  if (!names.ok()) return;
  for (const std::string& name : *names) AddAllocated(absl::StrCat(path, "/", name), seen, bytes);
}

// Returns the names of RocksDB's own files, and of others that are neither folders nor ours.
absl::StatusOr<std::vector<std::string>> StoreFiles(const std::string& path) {
  PREFIXD_ASSIGN_OR_RETURN(std::vector<std::string> names, ListNames(path));
  std::erase_if(names, [&path](const std::string& name) {
    struct stat info;
    return IsOurName(name) || lstat(absl::StrCat(path, "/", name).c_str(), &info) != 0 ||
           S_ISDIR(info.st_mode);
  });
  return names;
}

// Returns the damaged folders, oldest first: their names sort by time.
std::vector<std::string> DamagedFolders(const std::string& path) {
  absl::StatusOr<std::vector<std::string>> names = ListNames(path);
  if (!names.ok()) return {};
  std::erase_if(*names, [](const std::string& name) { return !name.starts_with(kDamagedPrefix); });
  std::sort(names->begin(), names->end());
  return *std::move(names);
}

// Makes a new folder, such as damaged-20261123T232227.012345Z.
absl::StatusOr<std::string> MakeDamagedFolder(const std::string& path) {
  const int64_t now_us = base::SystemClock::Get().UnixMicros();
  const std::time_t seconds = now_us / 1'000'000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 32> time{};
  std::strftime(time.data(), time.size(), "%Y%m%dT%H%M%S", &parts);
  std::string folder = absl::StrCat(path, "/", kDamagedPrefix, time.data(), ".",
                                    absl::Dec(now_us % 1'000'000, absl::kZeroPad6), "Z");
  if (mkdir(folder.c_str(), 0700) != 0) return Failed("create directory", folder, errno);
  return folder;
}

absl::Status SyncFolder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Failed("open", path, errno);
  const int error = os::Sync(fd) ? 0 : errno;
  close(fd);
  return error == 0 ? absl::OkStatus() : Failed("sync", path, error);
}

absl::Status WriteInstance(const std::string& directory) {
  std::random_device random;
  std::array<uint32_t, 4> words{};
  for (uint32_t& word : words) word = random();
  const std::string path = absl::StrCat(directory, "/", kInstanceName);
  const absl::Status written =
      base::WriteOwnFile(path, base::ToHex(base::AsBytes(words.data(), words.size())) + "\n");
  if (written.ok()) return written;
  return absl::UnavailableError(absl::StrCat("segment store: ", std::string(written.message())));
}

bool WriteAndReadBack(int fd) {
  void* page = nullptr;
  if (posix_memalign(&page, kProbeBytes, kProbeBytes) != 0) return false;
  std::memset(page, 0, kProbeBytes);
  const bool works = pwrite(fd, page, kProbeBytes, 0) == ssize_t{kProbeBytes} &&
                     pread(fd, page, kProbeBytes, 0) == ssize_t{kProbeBytes};
  std::free(page);
  return works;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StoreDirectory>> StoreDirectory::Open(const std::string& path,
                                                                     const base::LockWait& wait) {
  PREFIXD_RETURN_IF_ERROR(MakePrivateDirectory(path));
  const std::string lock_path = absl::StrCat(path, "/", kLockName);
  const int fd = open(lock_path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return Failed("write", lock_path, errno);
  const absl::Status locked =
      base::LockFile(fd, absl::StrCat("segment store: directory ", path), 0, wait);
  if (!locked.ok()) close(fd);
  if (absl::IsFailedPrecondition(locked)) {
    return absl::FailedPreconditionError(
        absl::StrCat(std::string(locked.message()), ": it is in use by another prefixd"));
  }
  PREFIXD_RETURN_IF_ERROR(locked);
  std::unique_ptr<StoreDirectory> directory(new StoreDirectory(path, fd));
  base::NameHolder(fd, 0);
  const std::string incoming = absl::StrCat(path, "/", kIncomingName);
  if (mkdir(incoming.c_str(), 0700) != 0 && errno != EEXIST) {
    return Failed("create directory", incoming, errno);
  }
  if (ReadInstance(path).empty()) PREFIXD_RETURN_IF_ERROR(WriteInstance(path));
  return directory;
}

StoreDirectory::~StoreDirectory() {
  base::ForgetHolder(lock_fd_, 0);
  close(lock_fd_);
}

std::string StoreDirectory::IncomingPath(const std::string& name) const {
  return absl::StrCat(path_, "/", kIncomingName, "/", name);
}

absl::Status StoreDirectory::RemoveIncoming() const {
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           ListNames(absl::StrCat(path_, "/", kIncomingName)));
  for (const std::string& name : names) {
    const std::string file = IncomingPath(name);
    if (unlink(file.c_str()) != 0) return Failed("remove", file, errno);
  }
  return absl::OkStatus();
}

bool StoreDirectory::HasDatabase() const {
  return access(absl::StrCat(path_, "/CURRENT").c_str(), F_OK) == 0;
}

absl::Status StoreDirectory::RemoveStore() const {
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<std::string> names, StoreFiles(path_));
  for (const std::string& name : names) {
    const std::string file = absl::StrCat(path_, "/", name);
    if (unlink(file.c_str()) != 0) return Failed("remove", file, errno);
  }
  return absl::OkStatus();
}

// Moves CURRENT first: without it, what a kill in between leaves is no store.
absl::StatusOr<std::string> StoreDirectory::MoveAside() const {
  PREFIXD_ASSIGN_OR_RETURN(std::vector<std::string> names, StoreFiles(path_));
  PREFIXD_ASSIGN_OR_RETURN(const std::string folder, MakeDamagedFolder(path_));
  std::stable_partition(names.begin(), names.end(),
                        [](const std::string& name) { return name == "CURRENT"; });
  for (const std::string& name : names) {
    const std::string from = absl::StrCat(path_, "/", name), to = absl::StrCat(folder, "/", name);
    if (rename(from.c_str(), to.c_str()) != 0) return Failed("move aside", from, errno);
  }
  PREFIXD_RETURN_IF_ERROR(SyncFolder(folder));
  PREFIXD_RETURN_IF_ERROR(SyncFolder(path_));
  while (DamagedFolders(path_).size() > kMaxDamaged) PREFIXD_RETURN_IF_ERROR(RemoveDamaged());
  return folder;
}

StoreDirectory::Damaged StoreDirectory::DamagedCopies() const {
  Damaged damaged;
  std::set<std::pair<dev_t, ino_t>> seen;
  for (const std::string& name : DamagedFolders(path_)) {
    ++damaged.count;
    AddAllocated(absl::StrCat(path_, "/", name), &seen, &damaged.bytes);
  }
  return damaged;
}

absl::Status StoreDirectory::RemoveDamaged() const {
  const std::vector<std::string> names = DamagedFolders(path_);
  if (names.empty()) return absl::NotFoundError("segment store: no damaged copy is kept");
  const std::string folder = absl::StrCat(path_, "/", names.front());
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  return error ? Failed("remove", folder, error.value()) : absl::OkStatus();
}

bool StoreDirectory::SupportsDirectIo() const {
  const std::string file = IncomingPath("probe");
  unlink(file.c_str());  // left by a crash
  if (!os::OpensUncached()) return false;
  const int fd = os::OpenUncached(file, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
  if (fd < 0) return false;
  const bool works = WriteAndReadBack(fd);
  close(fd);
  unlink(file.c_str());
  return works;
}

uint64_t StoreDirectory::BytesOf(std::initializer_list<std::string_view> wanted) const {
  const absl::StatusOr<std::vector<std::string>> names = ListNames(path_);
  if (!names.ok()) return 0;
  uint64_t bytes = 0;
  for (const std::string& name : *names) {
    struct stat info;
    const bool is = std::any_of(wanted.begin(), wanted.end(), [&](std::string_view part) {
      return name.starts_with(part) || name.ends_with(part);
    });
    if (is && lstat(absl::StrCat(path_, "/", name).c_str(), &info) == 0) {
      bytes += static_cast<uint64_t>(info.st_size);
    }
  }
  return bytes;
}

uint64_t StoreDirectory::FreeBytes() const {
  struct statvfs disk;
  if (statvfs(path_.c_str(), &disk) != 0) return 0;
  return static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
}

std::string ReadInstance(const std::string& directory) {
  const auto text = base::ReadOwnFile(absl::StrCat(directory, "/", kInstanceName), 256);
  if (!text.ok() || !text->has_value()) return "";
  return (*text)->substr(0, (*text)->find_first_of(" \n"));
}

uint64_t StoreDirectory::AllocatedBytes() const {
  std::set<std::pair<dev_t, ino_t>> seen;
  uint64_t bytes = 0;
  AddAllocated(path_, &seen, &bytes);
  return bytes;
}

}  // namespace prefixd::ssd
