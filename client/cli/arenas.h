// The arenas on this host: files that hold RAM tiers, in use or left by a prefixd that has ended.
//
// Reads and removes files itself; no daemon is asked. Thread-safe.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace prefixd::cli {

struct ArenaInfo {
  enum class State {
    kInUse,    // a running prefixd has it
    kLeft,     // nobody has it: the next prefixd on its socket would adopt it
    kUnknown,  // this user may not look
  };
  std::string path;
  State state = State::kUnknown;
  uint64_t pid = 0;          // of the prefixd that has it; 0 = none, or not known
  std::string socket{};      // that its prefixd listens or listened on; may be empty
  std::string owner;         // the user, by name or number
  double age_s = 0;          // since a prefixd last began or ended with it
  uint64_t bytes = 0;        // memory that it takes
  uint64_t named_bytes = 0;  // as `ls` shows it: what it could grow to
};

// Returns the arenas in these folders, largest first. Folders that are not there are skipped.
std::vector<ArenaInfo> FindArenas(const std::vector<std::string>& folders);

// Removes the arena with its key and locks. Returns what it was. FailedPrecondition: a running
// prefixd has it, or the file is no arena. PermissionDenied: it is another user's.
absl::StatusOr<ArenaInfo> RemoveArena(const std::string& path);

std::string ArenasView(const std::vector<ArenaInfo>& arenas);
std::string ArenasJson(const std::vector<ArenaInfo>& arenas);

std::string RemovedView(const std::vector<ArenaInfo>& removed);

}  // namespace prefixd::cli
