// The command line of prefixctl.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "client/cli/plan.h"
#include "client/cli/token.h"
#include "client/cli/top/top_request.h"

namespace prefixd::cli {

// Exit codes; --help lists them.
enum ExitCode : int {
  kExitOk = 0,
  kExitRefused = 1,      // the daemon refused, or could not do all of it
  kExitUsage = 2,        // the command line is wrong; nothing was done
  kExitUnreachable = 3,  // no daemon answered
  kExitNothing = 4,      // nothing cached was found; why: no answer fits
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
  kPrefixes,
  kBudget,
  kVerify,
  kPrefetch,
  kConfig,
  kArenas,
  kIdentity,
  kDoctor,
  kImport,
  kExport,
  kPlan,
  kTop,
  kEvents,
  kToken,
};

struct Options {
  Command command = Command::kStatus;
  std::string server;      // address, as gRPC takes it
  std::string admin;       // address for Admin calls: `server`, or a socket beside it
  std::string token_file;  // for a server on TCP; may be empty
  std::string salt;        // salt of the space that is named; prefixd does not show it
  std::chrono::milliseconds timeout{0};
  bool json = false;

  std::string space;                 // first hexadecimal digits of a space id, or all; may be empty
  std::string session;               // sessions --end: first digits of a session id
  std::vector<uint32_t> tokens;      // token ids of the prompt
  std::chrono::milliseconds ttl{0};  // pin, spaces --set; 0 = no end
  uint64_t ram_bytes = 0, ssd_bytes = 0;  // budget; 0 = unchanged
  bool set_limits = false;                // spaces --set
  uint64_t ram_floor = 0, ram_ceiling = 0, ssd_floor = 0, ssd_ceiling = 0;
  std::string request_id;   // why; empty = the newest
  uint32_t last = 20;       // why
  uint32_t most = 20;       // prefixes
  double below = 0;         // why: answers below this share of the request; 0 = all
  uint64_t pin = 0;         // unpin, in place of tokens
  std::string path;         // import, export: the file
  std::string identity;     // import, export: a file, or empty
  std::string model;        // identity, import: a model's folder; export: what the file names
  std::string adapter;      // identity, import: a folder, or empty
  bool force = false;       // export: over a file that is there
  bool llama = false;       // import, export: a llama.cpp state, else an mlx-lm prompt cache
  bool meta_state = false;  // export
  std::string like;         // export: a prompt cache, or empty
  std::vector<std::string> folders;  // arenas: where to look
  std::vector<std::string> remove;   // arenas: paths
  bool remove_left = false;          // arenas: all that are left
  bool all = false;                  // clear
  bool yes = false;                  // clear
  bool purge = false;                // clear
  bool disk = false;                 // doctor: measure the disk
  uint64_t rate = 0;                 // verify: bytes a second, 0 = no limit
  PlanRequest plan;                  // plan
  TopRequest top;                    // top
  TokenRequest token{};              // token
  bool event_tokens = false;         // events
  bool events_once = false;          // events
};

// Everything that the command line depends on besides itself.
struct Surroundings {
  std::map<std::string, std::string> environment;
  std::function<bool(const std::string& path)> exists;
  std::function<bool(const std::string& path)> writable{};  // by this user; empty = nothing is
};

// Returns the daemon's address: $PREFIXD_SERVER, else the first socket that exists of
// /run/prefixd/prefixd.sock and $XDG_RUNTIME_DIR/prefixd/prefixd.sock, else the first of the two.
std::string DefaultServer(const Surroundings& surroundings);

// Returns the address for Admin calls: $PREFIXD_ADMIN, else the admin socket beside that of
// `server` if this user may connect to it, else `server` itself, which answers some calls and
// refuses the rest.
std::string DefaultAdmin(const Surroundings& surroundings, const std::string& server);

// Fills `options`. Returns an exit code if the program is done: help was asked for (written to
// `out`), or the command line is refused (`err` gets the reason and what to do).
std::optional<int> ParseCommandLine(const std::vector<std::string>& arguments,
                                    const Surroundings& surroundings, Options* options,
                                    std::ostream& out, std::ostream& err);

}  // namespace prefixd::cli
