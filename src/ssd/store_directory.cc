#include "ssd/store_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "ssd/segment_store.h"

namespace prefixd::ssd {
namespace {

constexpr const char* kLockName = "prefixd.lock";
constexpr const char* kInstanceName = "prefixd.instance";
constexpr const char* kIncomingName = "incoming";
constexpr size_t kProbeBytes = 4096;

absl::Status Failed(const char* what, const std::string& path, int error) {
  const std::string message =
      absl::StrCat("segment store: cannot ", what, " ", path, ": ", strerror(error));
  const bool denied = error == EACCES || error == EPERM;
  return denied ? absl::PermissionDeniedError(message) : absl::UnavailableError(message);
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

// A mistyped path must not become ours: it would be made 0700 and filled.
absl::Status CheckOurs(const std::string& path) {
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListNames(path));
  std::string foreign;
  for (const std::string& name : names) {
    if (name == kLockName) return absl::OkStatus();
    if (name != "lost+found") foreign = name;
  }
  if (foreign.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("segment store: directory ", path,
                   " is neither empty nor a prefixd store, it holds ", foreign));
}

absl::Status MakePrivateDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0) return absl::OkStatus();
  if (errno != EEXIST) return Failed("create directory", path, errno);
  PREFIXD_RETURN_IF_ERROR(CheckOurs(path));
  if (chmod(path.c_str(), 0700) != 0) return Failed("make private", path, errno);
  return absl::OkStatus();
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

absl::Status WriteInstance(const std::string& directory) {
  std::random_device random;
  std::array<uint32_t, 4> words{};
  for (uint32_t& word : words) word = random();
  const std::string path = absl::StrCat(directory, "/", kInstanceName);
  std::ofstream file(path);
  file << base::ToHex(base::AsBytes(words.data(), words.size())) << "\n";
  file.close();
  return file.good() ? absl::OkStatus() : Failed("write", path, errno);
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
  const int fd = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
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

absl::Status StoreDirectory::RemoveStore() const {
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListNames(path_));
  for (const std::string& name : names) {
    struct stat info;
    const std::string file = absl::StrCat(path_, "/", name);
    const bool ours = name == kLockName || name == kInstanceName;
    if (ours || lstat(file.c_str(), &info) != 0 || S_ISDIR(info.st_mode)) continue;
    if (unlink(file.c_str()) != 0) return Failed("remove", file, errno);
  }
  return absl::OkStatus();
}

bool StoreDirectory::SupportsDirectIo() const {
  const std::string file = IncomingPath("probe");
  const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  const bool works = WriteAndReadBack(fd);
  close(fd);
  unlink(file.c_str());
  return works;
}

uint64_t StoreDirectory::FreeBytes() const {
  struct statvfs disk;
  if (statvfs(path_.c_str(), &disk) != 0) return 0;
  return static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
}

std::string ReadInstance(const std::string& directory) {
  std::ifstream file(absl::StrCat(directory, "/", kInstanceName));
  std::string instance;
  file >> instance;
  return instance;
}

uint64_t StoreDirectory::AllocatedBytes() const {
  std::set<std::pair<dev_t, ino_t>> seen;
  uint64_t bytes = 0;
  AddAllocated(path_, &seen, &bytes);
  return bytes;
}

}  // namespace prefixd::ssd
