// The command line of prefixctl.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace prefixd::cli {

// Exit codes; --help lists them.
enum ExitCode : int {
  kExitOk = 0,
  kExitRefused = 1,      // the daemon answered, and said no
  kExitUsage = 2,        // the command line is wrong; nothing was done
  kExitUnreachable = 3,  // no daemon answered
  kExitNothing = 4,      // match, export: not one token is in the cache
};

enum class Command {
  kStatus,
  kStats,
  kSpaces,
  kMatch,
  kClear,
  kSessions,
  kLeases,
  kFlush,
  kPin,
  kUnpin,
  kPins,
  kWhy,
  kBudget,
  kVerify,
  kPrefetch,
  kConfig,
  kImport,
  kExport,
};

struct Options {
  Command command = Command::kStatus;
  std::string server;      // as gRPC takes it
  std::string admin;       // where Admin is asked: the same, or a socket beside it
  std::string token_file;  // for a server on TCP; may be empty
  std::string salt;        // of the space whose prompt is meant; prefixd shows none
  std::chrono::milliseconds timeout{0};
  bool json = false;

  std::string space;    // hexadecimal digits: the first few of a space id, or all; may be empty
  std::string session;  // sessions --end: the same of a session
  std::vector<uint32_t> tokens;           // match, pin, unpin
  std::chrono::milliseconds ttl{0};       // pin; 0 = no end
  uint64_t ram_bytes = 0, ssd_bytes = 0;  // budget; 0 = as it is
  bool set_limits = false;                // spaces --set
  uint64_t ram_floor = 0, ram_ceiling = 0, ssd_floor = 0, ssd_ceiling = 0;
  std::string request_id;   // why; empty = the newest
  uint32_t last = 20;       // why
  double below = 0;         // why: share of the request
  uint64_t pin = 0;         // unpin, in place of tokens
  std::string path;         // import, export: the file
  std::string identity;     // the same: a file, or empty
  bool llama = false;       // the same: a state of llama.cpp, else a prompt cache of mlx-lm
  bool meta_state = false;  // export
  std::string like;         // export: a prompt cache, or empty
  bool all = false;         // clear
  bool yes = false;         // clear
  bool purge = false;       // clear
  uint64_t rate = 0;        // verify: bytes a second, 0 = no limit
};

// What the command line depends on besides itself.
struct Surroundings {
  std::map<std::string, std::string> environment;
  std::function<bool(const std::string& path)> exists;
  std::function<bool(const std::string& path)> writable{};  // by this user; none: nothing is
};

// Where to look for the daemon: $PREFIXD_SERVER, else the first socket that exists of
// /run/prefixd/prefixd.sock and $XDG_RUNTIME_DIR/prefixd/prefixd.sock, else the first of them.
std::string DefaultServer(const Surroundings& surroundings);

// Where to ask Admin: $PREFIXD_ADMIN, else the admin socket beside that of `server` if this user
// may connect there, else `server` itself, which answers a part of it and refuses the rest.
std::string DefaultAdmin(const Surroundings& surroundings, const std::string& server);

// Fills `options`. An exit code when the program is done already: help was asked for (written to
// `out`), or the command line is refused (why, and what to do, goes to `err`).
std::optional<int> ParseCommandLine(const std::vector<std::string>& arguments,
                                    const Surroundings& surroundings, Options* options,
                                    std::ostream& out, std::ostream& err);

}  // namespace prefixd::cli
