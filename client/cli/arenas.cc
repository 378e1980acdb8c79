#include "client/cli/arenas.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/descriptor.h"
#include "base/file_lock.h"
#include "base/process.h"
#include "base/size.h"
#include "base/status.h"
#include "block/arena_file.h"
#include "client/cli/table.h"
#include "client/cli/units.h"
#include "os/files.h"

namespace prefixd::cli {
namespace {

using State = ArenaInfo::State;

std::string LocksOf(const std::string& arena) { return arena + ".locks"; }
std::string OwnerLockOf(const std::string& arena) { return LocksOf(arena) + "/owner"; }

std::string UserName(uid_t uid) {
  const passwd* const user = ::getpwuid(uid);
  return user == nullptr ? std::to_string(uid) : user->pw_name;
}

double AgeOf(const timespec& then) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::max(
      0.0, std::chrono::duration<double>(now).count() -
               (static_cast<double>(then.tv_sec) + static_cast<double>(then.tv_nsec) * 1e-9));
}

// Returns the process named at an offset of a file.
base::ProcessName Holder(int fd, uint64_t offset) {
  char line[base::kProcessLineBytes] = {};
  const ssize_t got = ::pread(fd, line, sizeof(line), static_cast<off_t>(offset));
  return base::DecodeProcess({line, got > 0 ? static_cast<size_t>(got) : 0});
}

base::Descriptor OpenPlain(const std::string& path, int mode) {
  return base::Descriptor(::open(path.c_str(), mode | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
}

// Returns whether the open file begins as an arena does.
bool IsArena(int fd) {
  uint64_t magic = 0;
  return ::pread(fd, &magic, sizeof(magic), 0) == sizeof(magic) && magic == block::kArenaMagic;
}

// A worker that maps the arena can hold the lock of the file itself; the owner's lock decides.
bool IsFree(const std::string& path, int fd) {
  if (!base::IsUnlocked(OwnerLockOf(path))) return false;
  return base::IsUnlocked(path) || base::HolderHasEnded(fd, block::kArenaOwnerOffset);
}

void ReadLocks(const std::string& path, ArenaInfo* info) {
  struct stat status = {};
  if (::stat(OwnerLockOf(path).c_str(), &status) == 0) {
    info->age_s = std::min(info->age_s, AgeOf(os::WrittenAt(status)));
  }
  std::ifstream socket(LocksOf(path) + "/socket");
  std::getline(socket, info->socket);
}

// Returns nullopt if the file is no arena, as far as this user can tell.
std::optional<ArenaInfo> Look(const std::string& path) {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  ArenaInfo info{.path = path,
                 .owner = UserName(status.st_uid),
                 .age_s = AgeOf(os::WrittenAt(status)),
                 .bytes = static_cast<uint64_t>(status.st_blocks) * 512,
                 .named_bytes = static_cast<uint64_t>(status.st_size)};
  const base::Descriptor fd = OpenPlain(path, O_RDONLY);
  if (!fd) {  // its name is all that there is to go by
    return absl::EndsWith(path, ".arena") ? std::optional(info) : std::nullopt;
  }
  if (!IsArena(fd.get())) return std::nullopt;
  ReadLocks(path, &info);
  // Another user's folder of locks cannot be entered, which looks as if nobody had a lock.
  if (status.st_uid != ::geteuid() && ::geteuid() != 0) return info;
  info.state = IsFree(path, fd.get()) ? State::kLeft : State::kInUse;
  const base::ProcessName holder = Holder(fd.get(), block::kArenaOwnerOffset);
  if (info.state == State::kInUse) info.pid = holder.pid;
  return info;
}

absl::Status Refused(const std::string& path, const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", why));
}

absl::Status InUse(const ArenaInfo& info) {
  return Refused(info.path, absl::StrCat("a running prefixd has it",
                                         info.pid == 0 ? "" : absl::StrCat(", process ", info.pid),
                                         ": stop that first"));
}

// Takes a lock that a prefixd would take before it uses the arena. Returns false if one has it.
bool Lock(const base::Descriptor& fd) { return ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0; }

const char* Word(State state) {
  switch (state) {
    case State::kInUse:
      return "in use";
    case State::kLeft:
      return "left";
    case State::kUnknown:
      break;
  }
  return "not yours";
}

}  // namespace

std::vector<ArenaInfo> FindArenas(const std::vector<std::string>& folders) {
  std::vector<ArenaInfo> found;
  for (const std::string& folder : folders) {
    std::error_code error;
    for (auto it = std::filesystem::directory_iterator(folder, error);
         !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
      if (std::optional<ArenaInfo> info = Look(it->path().string())) {
        found.push_back(*std::move(info));
      }
    }
  }
  std::ranges::sort(found, [](const ArenaInfo& a, const ArenaInfo& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.path < b.path;
  });
  return found;
}

absl::StatusOr<ArenaInfo> RemoveArena(const std::string& path) {
  const std::optional<ArenaInfo> info = Look(path);
  if (!info.has_value()) return Refused(path, "there is no arena");
  if (info->state == State::kUnknown) {
    return absl::PermissionDeniedError(absl::StrCat(path, ": it is ", info->owner, "'s"));
  }
  if (info->state == State::kInUse) return InUse(*info);
  // Both locks are held until the files are gone: a prefixd that starts meanwhile waits, then makes
  // a new arena.
  const base::Descriptor owner = OpenPlain(OwnerLockOf(path), O_RDWR);
  const base::Descriptor arena = OpenPlain(path, O_RDWR);
  if (owner && !Lock(owner)) return InUse(*info);
  if (!arena || (!Lock(arena) && !base::HolderHasEnded(arena.get(), block::kArenaOwnerOffset))) {
    return InUse(*info);
  }
  if (::unlink(path.c_str()) != 0) {
    return Refused(path, absl::StrCat("cannot be removed: ", std::strerror(errno)));
  }
  ::unlink((path + ".key").c_str());
  std::error_code error;  // what is left of the locks harms nobody
  std::filesystem::remove_all(LocksOf(path), error);
  return *info;
}

std::string ArenasView(const std::vector<ArenaInfo>& arenas) {
  if (arenas.empty()) return "no arenas\n";
  using Align = Table::Align;
  Table table({{"arena"},
               {"state"},
               {"of"},
               {"since", Align::kRight},
               {"memory", Align::kRight},
               {"ls shows", Align::kRight},
               {"socket"}});
  uint64_t left = 0;
  for (const ArenaInfo& arena : arenas) {
    if (arena.state == State::kLeft) left += arena.bytes;
    const std::string pid = arena.pid == 0 ? "" : absl::StrCat(", pid ", arena.pid);
    table.AddRow({arena.path, absl::StrCat(Word(arena.state), pid), arena.owner,
                  UptimeText(arena.age_s), base::FormatBytes(arena.bytes),
                  base::FormatBytes(arena.named_bytes), arena.socket.empty() ? "?" : arena.socket});
  }
  const std::string text = table.Text();
  if (left == 0) return text;
  return absl::StrCat(text, base::FormatBytes(left),
                      " are left by prefixds that have ended: prefixctl arenas --remove PATH, or "
                      "--remove-left\n");
}

std::string ArenasJson(const std::vector<ArenaInfo>& arenas) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ArenaInfo& arena : arenas) {
    list.push_back({{"path", arena.path},
                    {"state", Word(arena.state)},
                    {"pid", arena.pid},
                    {"socket", arena.socket},
                    {"owner", arena.owner},
                    {"age_s", arena.age_s},
                    {"bytes", arena.bytes},
                    {"named_bytes", arena.named_bytes}});
  }
  const nlohmann::ordered_json json = {{"arenas", list}};
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string RemovedView(const std::vector<ArenaInfo>& removed) {
  uint64_t bytes = 0;
  for (const ArenaInfo& arena : removed) bytes += arena.bytes;
  return absl::StrCat("removed ", Plural(removed.size(), "arena"), " of ", base::FormatBytes(bytes),
                      "; what a worker still maps is free when it ends\n");
}

}  // namespace prefixd::cli
