#include "bench/kernels/huge_tmpfs.h"

#include <sched.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace prefixd::bench {
namespace {

absl::Status Refused(const std::string& what) {
  return absl::PermissionDeniedError(
      absl::StrCat("huge tmpfs: ", what, ": ", std::strerror(errno)));
}

absl::StatusOr<std::string> Mount() {
  if (::unshare(CLONE_NEWNS) != 0) return Refused("no mount namespace of its own");
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return Refused("mounts cannot be made private");
  }
  // In the namespace alone: over a folder that everybody has, whose contents are not needed here.
  const std::string folder = "/mnt";
  if (::mount("prefixd-bench", folder.c_str(), "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC,
              "huge=within_size,size=90%") != 0) {
    return Refused(folder);
  }
  return folder;
}

}  // namespace

absl::StatusOr<std::string> MountHugeTmpfs() {
  static const absl::StatusOr<std::string> folder = Mount();
  return folder;
}

}  // namespace prefixd::bench
