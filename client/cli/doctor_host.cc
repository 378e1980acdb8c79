// The checks of the host: what the system and the filesystems say.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"

#include "base/descriptor.h"
#include "base/size.h"
#include "client/cli/arenas.h"
#include "client/cli/doctor.h"
#include "os/files.h"
#include "os/machine.h"

namespace prefixd::cli {
namespace {

// Returns `path` or the nearest folder above it that exists.
std::string Existing(const Host& host, const std::string& path) {
  std::filesystem::path at = path;
  std::error_code error;
  while (!std::filesystem::exists(host.root + at.string(), error) && at.has_relative_path()) {
    at = at.parent_path();
  }
  return at.string();
}

std::optional<Host::Space> SpaceOf(const Host& host, const std::string& path) {
  const std::string at = Existing(host, path);
  if (const auto told = host.spaces.find(at); told != host.spaces.end()) return told->second;
  const std::optional<os::MountFacts> disk = os::MountOf(host.root + at);
  if (!disk.has_value()) return std::nullopt;
  return Host::Space{
      .bytes = disk->bytes, .free_bytes = disk->free_bytes, .is_tmpfs = disk->in_memory};
}

uint64_t AllocatedBytes(const std::string& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<uint64_t>(status.st_blocks) * 512 : 0;
}

// --- memory

// Returns what the budget gives the arena; without a daemon, what it gives it by default.
uint64_t ArenaBytes(const Host& host, const Wanted& wanted) {
  if (wanted.arena_bytes > 0) return wanted.arena_bytes;
  return os::MemoryAvailable(host.root).value_or(0) / 5 / 100 * 78;
}

Finding ArenaRoom(const Host& host, const Wanted& wanted) {
  const std::string folder = std::filesystem::path(wanted.arena).parent_path().string();
  Finding finding{.name = folder};
  const std::optional<Host::Space> space = SpaceOf(host, folder);
  if (!space.has_value() || !std::filesystem::exists(host.root + folder)) {
    return {folder, Verdict::kWrong, "is not there", "mount a tmpfs there, or name --arena", 90};
  }
  if (!space->is_tmpfs) {
    return {folder, Verdict::kWrong, "is no tmpfs: the arena cannot be shared",
            "mount a tmpfs, and name a file on it with --arena", 90};
  }
  const uint64_t wants = ArenaBytes(host, wanted);
  const uint64_t room = space->free_bytes + AllocatedBytes(host.root + wanted.arena);
  finding.found = absl::StrCat(base::FormatBytes(room), " for the arena, which may take ",
                               base::FormatBytes(wants));
  if (space->bytes == 0 || room >= wants) return finding;
  finding.verdict = Verdict::kBetter;
  finding.change = absl::StrCat("give the tmpfs ", base::FormatBytes(wants + wants / 16),
                                " (mount -o remount,size=..., docker --shm-size), or lower --ram");
  finding.worth = room < wants / 4 ? 88 : 80;
  return finding;
}

Finding HugePages(const Host& host, const Wanted& wanted) {
  Finding finding{.name = "huge pages"};
  const std::optional<bool> has = os::MountHasHugePages(host.root, wanted.arena);
  if (!has.has_value()) {
    finding.verdict = Verdict::kUnknown;
    finding.found = "the kernel does not say whether a tmpfs may have them";
    return finding;
  }
  if (*has) {
    finding.found = "the arena's tmpfs has them";
    return finding;
  }
  finding.verdict = Verdict::kBetter;
  finding.found = "the arena's tmpfs has none";
  finding.change =
      "mount a tmpfs with huge=within_size (deploy/run-prefixd_arena.mount), and name "
      "a file on it with --arena: attention that reads in place gains";
  finding.worth = 40;
  return finding;
}

Finding Cgroup(const Host& host, const Wanted& wanted) {
  const uint64_t limit = os::GroupMemoryLimit(host.root, wanted.pid);
  if (limit == os::kNoLimit) return {.name = "cgroup", .found = "no memory limit"};
  Finding finding{.name = "cgroup",
                  .found = absl::StrCat("memory limit of ", base::FormatBytes(limit))};
  const uint64_t needs = wanted.ram_bytes + (uint64_t{64} << 20);
  if (wanted.ram_bytes == 0 || needs <= limit) return finding;
  finding.verdict = Verdict::kWrong;
  absl::StrAppend(&finding.found, ", prefixd may take ", base::FormatBytes(needs),
                  ": the kernel would kill it");
  finding.change = "raise the limit, or lower --ram";
  finding.worth = 98;
  return finding;
}

Finding Swap(const Host& host) {
  const uint64_t swap = os::SwapBytes(host.root).value_or(0);
  if (swap == 0) return {.name = "swap", .found = "none"};
  return {.name = "swap",
          .verdict = Verdict::kBetter,
          .found = absl::StrCat(base::FormatBytes(swap), ": the arena's pages may go there"),
          .change = "swapoff -a, or memory.swap.max=0 for prefixd: a hit must not wait for swap",
          .worth = 35};
}

Finding LeftArenas(const Host& host, const Wanted& wanted) {
  const std::string folder = std::filesystem::path(wanted.arena).parent_path().string();
  uint64_t bytes = 0, count = 0;
  for (const ArenaInfo& arena : FindArenas({host.root + folder})) {
    if (arena.state != ArenaInfo::State::kLeft || arena.path == host.root + wanted.arena) continue;
    bytes += arena.bytes;
    ++count;
  }
  if (count == 0) return {.name = "arenas", .found = "none was left by another prefixd"};
  return {.name = "arenas",
          .verdict = Verdict::kBetter,
          .found = absl::StrCat(count, " left by prefixds that have ended take ",
                                base::FormatBytes(bytes)),
          .change = "prefixctl arenas lists them; --remove-left frees their memory",
          .worth = 50};
}

// --- disk

absl::Status TryDirect(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/prefixd-doctor-", ::getpid());
  const base::Descriptor fd(os::OpenUncached(path, O_RDWR | O_CREAT | O_EXCL, 0600));
  const int opened = fd ? 0 : errno;
  if (!fd) return absl::ErrnoToStatus(opened, "");
  constexpr size_t kBytes = 4096;
  const std::unique_ptr<void, decltype(&std::free)> page(std::aligned_alloc(kBytes, kBytes),
                                                         &std::free);
  std::memset(page.get(), 0, kBytes);
  const bool written = ::pwrite(fd.get(), page.get(), kBytes, 0) == kBytes;
  const int error = written ? 0 : errno;
  ::unlink(path.c_str());
  return written ? absl::OkStatus() : absl::ErrnoToStatus(error, "");
}

Finding DirectIo(const Host& host, const Wanted& wanted) {
  Finding finding{.name = "O_DIRECT"};
  const std::string folder = host.root + wanted.directory;
  if (::access(folder.c_str(), W_OK) != 0) {
    finding.verdict = Verdict::kUnknown;
    finding.found = absl::StrCat("not tried: ", wanted.directory, " is not there, or not for you");
    return finding;
  }
  const absl::Status tried = TryDirect(folder);
  if (tried.ok()) {
    finding.found = absl::StrCat(wanted.directory, " takes it");
    return finding;
  }
  finding.found = absl::StrCat(wanted.directory, " refuses it: ", std::string(tried.message()));
  if (!wanted.direct_io) return finding;
  finding.verdict = Verdict::kBetter;
  finding.change = "put --directory on ext4 or xfs, or say --direct-io off";
  finding.worth = 45;
  return finding;
}

Finding FreeSpace(const Host& host, const Wanted& wanted) {
  const std::optional<Host::Space> disk = SpaceOf(host, wanted.directory);
  if (!disk.has_value()) {
    return {wanted.directory, Verdict::kUnknown, "its disk cannot be measured", "", 0};
  }
  Finding finding{.name = wanted.directory,
                  .found = absl::StrCat(base::FormatBytes(disk->free_bytes), " free of ",
                                        base::FormatBytes(disk->bytes))};
  if (disk->is_tmpfs) {
    finding.verdict = Verdict::kWrong;
    finding.found += ", in memory: nothing there survives a reboot";
    finding.change = "name a folder on a disk with --directory, or say --ssd off";
    finding.worth = 75;
  } else if (disk->free_bytes < wanted.floor_bytes / 2) {
    finding.verdict = Verdict::kWrong;
    finding.change = absl::StrCat("free space: below half of --ssd-floor (",
                                  base::FormatBytes(wanted.floor_bytes), ") nothing is written");
    finding.worth = 92;
  } else if (disk->free_bytes < wanted.floor_bytes) {
    finding.verdict = Verdict::kBetter;
    finding.change =
        absl::StrCat("free space, or lower --ssd-floor (", base::FormatBytes(wanted.floor_bytes),
                     "): with less the tier is not opened at a start");
    finding.worth = 70;
  } else if (const uint64_t room = disk->free_bytes - wanted.floor_bytes + wanted.ssd_file_bytes;
             wanted.ssd_bytes > room) {
    finding.verdict = Verdict::kBetter;
    finding.change =
        absl::StrCat("free space, or lower the SSD budget of ", base::FormatBytes(wanted.ssd_bytes),
                     ": above --ssd-floor (", base::FormatBytes(wanted.floor_bytes),
                     ") the disk has ", base::FormatBytes(room), " for it");
    finding.worth = 30;
  }
  return finding;
}

// What was written in the future tells that the clock went back: ages and times to live are wrong.
Finding ClockOf(const Host& host, const Wanted& wanted) {
  constexpr auto kSlack = std::chrono::minutes(1);
  constexpr auto kYear2025 = std::chrono::seconds(1'735'689'600);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::chrono::seconds newest{0};
  std::error_code error;
  const std::string folder = host.root + wanted.directory;
  for (auto it = std::filesystem::directory_iterator(folder, error);
       !wanted.directory.empty() && !error && it != std::filesystem::directory_iterator();
       it.increment(error)) {
    struct stat status = {};
    if (::lstat(it->path().c_str(), &status) != 0) continue;
    newest = std::max(newest, std::chrono::seconds(os::WrittenAt(status).tv_sec));
  }
  if (newest <= now + kSlack && now > kYear2025) {
    return {.name = "clock", .found = "behind nothing that is stored"};
  }
  return {.name = "clock",
          .verdict = Verdict::kWrong,
          .found = "earlier than files of the store: it went back, or is not set",
          .change = "set it (systemd-timesyncd, chrony): ages and times to live follow it",
          .worth = 65};
}

// --- system

Finding Kernel(const Host& host) {
  const std::string release = os::KernelRelease(host.root);
  Finding finding{.name = "kernel", .found = release.empty() ? "not told" : release};
  if (release.empty()) finding.verdict = Verdict::kUnknown;
  if (release.empty() || os::MapsAhead(release)) return finding;
  finding.verdict = Verdict::kBetter;
  finding.change = "5.14 and later map an arena's memory ahead; with this one, new pages cost more";
  finding.worth = 20;
  return finding;
}

Finding OpenFiles(const Host& host, const Wanted& wanted) {
  constexpr uint64_t kEnough = 65536, kLeast = 1024;  // the unit's; a worker takes up to four
  const std::optional<uint64_t> limit = os::DescriptorLimit(host.root, wanted.pid);
  const char* whose = wanted.pid == 0 ? "this shell's" : "prefixd's";
  if (!limit.has_value()) {
    return {"open files", Verdict::kUnknown, absl::StrCat(whose, " limit is not told"), "", 0};
  }
  Finding finding{.name = "open files",
                  .found = *limit == os::kNoLimit ? absl::StrCat(whose, " are not limited")
                                                  : absl::StrCat(whose, " limit is ", *limit)};
  if (*limit >= kEnough) return finding;
  finding.verdict = *limit < kLeast ? Verdict::kWrong : Verdict::kBetter;
  finding.change =
      "ulimit -n 65536, or LimitNOFILE=65536: a worker takes up to four, the SSD tier "
      "one for each segment";
  finding.worth = *limit < kLeast ? 55 : 25;
  return finding;
}

Finding Processor(const Host& host) {
  const std::string flags = os::CpuFlags(host.root);
  const auto has = [&](const char* flag) {
    return flags.find(absl::StrCat(" ", flag, " ")) != std::string::npos;
  };
  if (flags.empty()) return {"cpu", Verdict::kUnknown, "does not tell what it can do", "", 0};
  std::string found;
  for (const auto& [flag, name] :
       {std::pair("avx2", "AVX2"), {"avx512bw", "AVX-512"}, {"amx_tile", "AMX"}}) {
    absl::StrAppend(&found, found.empty() ? "" : ", ", has(flag) ? "" : "no ", name);
  }
  Finding finding{.name = "cpu", .found = found};
  if (has("avx2")) return finding;
  finding.verdict = Verdict::kBetter;
  finding.change =
      "prefixd and the kernels run slower here; if this is a virtual machine, pass the "
      "host's CPU through";
  finding.worth = 15;
  return finding;
}

}  // namespace

std::vector<Finding> ExamineMemory(const Host& host, const Wanted& wanted) {
  std::vector<Finding> findings = {Cgroup(host, wanted), Swap(host)};
  if (wanted.arena.empty()) return findings;
  findings.push_back(ArenaRoom(host, wanted));
  findings.push_back(HugePages(host, wanted));
  findings.push_back(LeftArenas(host, wanted));
  return findings;
}

std::vector<Finding> ExamineDisk(const Host& host, const Wanted& wanted) {
  if (wanted.directory.empty()) {
    return {{.name = "ssd",
             .verdict = Verdict::kBetter,
             .found = "off: a reboot loses the cache",
             .change = "give it a disk: --directory and --ssd",
             .worth = 42}};
  }
  return {FreeSpace(host, wanted), DirectIo(host, wanted)};
}

std::vector<Finding> ExamineSystem(const Host& host, const Wanted& wanted) {
  return {ClockOf(host, wanted), OpenFiles(host, wanted), Kernel(host), Processor(host)};
}

std::vector<Finding> ExamineSocket(const Host& host, const Wanted& wanted) {
  if (wanted.socket.empty()) return {};
  struct stat status = {};
  if (::stat((host.root + wanted.socket).c_str(), &status) != 0) return {};
  Finding finding{.name = wanted.socket};
  char mode[8];
  std::snprintf(mode, sizeof(mode), "%04o", status.st_mode & 0777);
  finding.found = absl::StrCat("mode ", mode);
  if ((status.st_mode & S_IWOTH) != 0) {
    finding.verdict = Verdict::kWrong;
    finding.found += ": every user of this host can read and write the cache";
    finding.change =
        absl::StrCat("chmod o-w ", wanted.socket, ", and put workers into the socket's group");
    finding.worth = 97;
  } else if (host.root.empty() && ::access(wanted.socket.c_str(), W_OK) != 0) {
    finding.verdict = Verdict::kUnknown;
    finding.found += ": not for you";
    finding.change = "workers of this user need its group: usermod -aG GROUP USER";
    finding.worth = 99;
  }
  return {finding};
}

}  // namespace prefixd::cli
