// prefixctl doctor: looks at the host, the settings and the daemon, and says what to change, what
// is worth most first.
//
// Reads files, makes and removes one file of 4 KiB in the store's folder to try O_DIRECT (with
// --disk one of 128 MiB), and changes nothing else. Not for concurrent use.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "prefixd/v1/admin.pb.h"

namespace prefixd::cli {

enum class Verdict {
  kWrong,   // it does not work, or data is at risk: exit code 1
  kBetter,  // it works, and would work better otherwise
  kFine,
  kUnknown  // this user may not look, or the host does not say
};

struct Finding {
  std::string name{};  // "/dev/shm"
  Verdict verdict = Verdict::kFine;
  std::string found{};   // what is there
  std::string change{};  // what to do; empty where there is nothing to do
  int worth = 0;         // of the change: more is worth more
};

// The host as the checks see it: what a file says, beneath a root that a test may give.
struct Host {
  std::string root{};  // before /proc, /sys, /dev/shm, /run and /etc; empty = the real ones
  // Sizes of the filesystem that holds a path (without `root`): bytes of all, and free for this
  // user; nullopt = ask the system.
  struct Space {
    uint64_t bytes = 0, free_bytes = 0;
    bool is_tmpfs = false;
  };
  std::map<std::string, Space> spaces{};
};

// What prefixd says, or why it does not. Its settings tell the directory, the arena and the
// budgets; without a daemon the defaults of prefixd are looked at.
struct DaemonView {
  std::string address;
  absl::StatusOr<v1::GetConfigReply> config;
  absl::StatusOr<v1::GetStatsReply> stats;
  absl::StatusOr<v1::ListSessionsReply> sessions;
  std::string own_version;  // of prefixctl
};

// The checks of the host, each of which returns one finding or several.
struct Wanted {
  std::string socket;                     // path; empty = TCP
  std::string directory;                  // of the SSD tier; empty = off
  std::string arena;                      // path of the file; empty = private memory
  uint64_t ram_bytes = 0, ssd_bytes = 0;  // 0 = not known
  uint64_t arena_bytes = 0;               // what the budget gives the arena; 0 = not known
  uint64_t ssd_file_bytes = 0;            // that the SSD tier takes now
  uint64_t floor_bytes = 0;
  uint64_t write_rate = 0;  // bytes a second that the settings allow; 0 = no number is set
  bool direct_io = true;
  uint64_t pid = 0;  // of prefixd; 0 = not known
};
std::vector<Finding> ExamineMemory(const Host& host, const Wanted& wanted);
std::vector<Finding> ExamineDisk(const Host& host, const Wanted& wanted);
// Writes 128 MiB in the SSD tier's folder, reads them back and removes them.
std::vector<Finding> ExamineDiskSpeed(const Host& host, const Wanted& wanted);
std::vector<Finding> ExamineSystem(const Host& host, const Wanted& wanted);
std::vector<Finding> ExamineSocket(const Host& host, const Wanted& wanted);

// Returns every check, what is worth most to change first, then what is fine. `disk`: the disk's
// speed is measured too.
std::vector<Finding> Examine(const Host& host, const DaemonView& daemon, bool disk = false);

// Returns true if something is wrong.
bool AnyWrong(const std::vector<Finding>& findings);
std::string DoctorView(const std::vector<Finding>& findings);
std::string DoctorJson(const std::vector<Finding>& findings);

}  // namespace prefixd::cli
