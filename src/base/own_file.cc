#include "base/own_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/status.h"
#include "os/files.h"

namespace prefixd::base {
namespace {

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

absl::Status Failed(const char* what, const std::string& path, int error) {
  return absl::UnavailableError(absl::StrCat("cannot ", what, " ", path, ": ", strerror(error)));
}

absl::Status Foreign(const std::string& what, uid_t owner) {
  return absl::FailedPreconditionError(
      absl::StrCat(what, " belongs to user ", owner, ", this is ", geteuid(),
                   ": run prefixd as that user, chown it, or choose another place"));
}

bool IsTrusted(uid_t owner) { return owner == 0 || owner == geteuid(); }

// Checks who owns each folder and link on an absolute path; stops at a part that does not exist.
absl::Status CheckParts(const std::filesystem::path& path, const std::string& what) {
  std::filesystem::path part;
  for (const std::filesystem::path& name : path) {
    part /= name;
    struct stat status = {};
    if (lstat(part.c_str(), &status) != 0) return absl::OkStatus();
    const bool leads = S_ISLNK(status.st_mode) || part != path;
    if (leads && !IsTrusted(status.st_uid)) {
      const char* const kind = S_ISLNK(status.st_mode) ? ": the link " : ": the folder ";
      return Foreign(absl::StrCat(what, kind, part.string()), status.st_uid);
    }
  }
  return absl::OkStatus();
}

absl::Status WriteWhole(const std::string& path, const std::string& text) {
  const File file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.get() < 0) return Failed("create", path, errno);
  if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      !os::Sync(file.get())) {
    return Failed("write", path, errno);
  }
  return absl::OkStatus();
}

absl::Status SyncFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::absolute(path).parent_path().string();
  const File directory(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const bool synced = directory.get() >= 0 && os::Sync(directory.get());
  return synced ? absl::OkStatus() : Failed("sync", folder, errno);
}

}  // namespace

absl::Status CheckOwner(int fd, const std::string& what) {
  struct stat status = {};
  if (fstat(fd, &status) != 0) return Failed("look at", what, errno);
  return status.st_uid == geteuid() ? absl::OkStatus() : Foreign(what, status.st_uid);
}

absl::Status CheckWay(const std::string& path, const std::string& what) {
  if (geteuid() != 0) return absl::OkStatus();
  std::error_code error;
  const std::filesystem::path named = std::filesystem::absolute(path);
  PREFIXD_RETURN_IF_ERROR(CheckParts(named, what));
  // Checks the path that the links lead to.
  const std::filesystem::path real = std::filesystem::weakly_canonical(named, error);
  return error ? absl::OkStatus() : CheckParts(real, what);
}

absl::StatusOr<int> OpenOwnFolder(const std::string& path, const std::string& what) {
  struct stat status = {};
  if (lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode) && !IsTrusted(status.st_uid)) {
    return Foreign(absl::StrCat(what, ": the link"), status.st_uid);
  }
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return fd;
  const absl::Status ours = CheckOwner(fd, what);
  if (ours.ok()) return fd;
  close(fd);
  return ours;
}

absl::StatusOr<std::optional<std::string>> ReadOwnFile(const std::string& path, size_t most_bytes,
                                                       ReadableBy readable_by) {
  const File file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0 && errno == ENOENT) return std::nullopt;
  if (file.get() < 0 && errno == ELOOP) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is a link"));
  }
  if (file.get() < 0) return Failed("open", path, errno);
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) return Failed("look at", path, errno);
  if (!S_ISREG(status.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a plain file"));
  }
  PREFIXD_RETURN_IF_ERROR(CheckOwner(file.get(), path));
  if (readable_by == ReadableBy::kOwnerAlone && (status.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " may be read or written by others, a secret is its owner's alone"));
  }
  std::string text(most_bytes, '\0');
  const ssize_t bytes = read(file.get(), text.data(), text.size());
  if (bytes < 0) return Failed("read", path, errno);
  text.resize(static_cast<size_t>(bytes));
  return text;
}

absl::Status WriteOwnFile(const std::string& path, const std::string& text) {
  const std::string fresh = absl::StrCat(path, ".new");
  unlink(fresh.c_str());  // a crash may have left it
  absl::Status written = WriteWhole(fresh, text);
  if (written.ok() && rename(fresh.c_str(), path.c_str()) != 0) {
    written = Failed("replace", path, errno);
  }
  if (!written.ok()) unlink(fresh.c_str());
  PREFIXD_RETURN_IF_ERROR(written);
  return SyncFolderOf(path);
}

}  // namespace prefixd::base
