// Configuration: flags, PREFIXD_* environment, a file, built-in defaults, in this order of
// precedence, read with CLI11.
//
// Every setting has one name: --ssd-floor, PREFIXD_SSD_FLOOR, `ssd-floor = "10GiB"` in the file.
// The table in settings.cc is the only list of them in the program: help, file, environment, echo
// and GetConfig all come from it. deploy/prefixd.conf (config_test compares it) and README.md
// repeat it. Pure, except for reading the file and asking the system about the user, groups
// and writable folders.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/size.h"
#include "daemon/tracing/collector_address.h"

namespace prefixd::daemon {

// Exit codes of the program.
enum ExitCode : int {
  kExitOk = 0,      // stopped on request, everything saved
  kExitFailed = 1,  // failed while running
  kExitUsage = 2,   // a flag, the file or the environment is wrong, or asks for the impossible
  kExitStart = 3,   // could not start: socket or directory in use, not writable, no memory
  kExitUnsaved =
      4,  // stopped on request, but some bytes did not reach the SSD before the drain deadline
  kExitForced = 130  // stopped at once by a second signal
};

struct Setting {
  std::string name;
  // As written; LoadConfig puts the effective path in place of "auto", Program the budgets.
  std::string value;
  std::string source;  // "default", "file", "environment", "flag"
};

enum class SsdMode { kAuto, kOff, kSize };

struct Config {
  std::string socket;                // path, "auto" resolved
  bool make_socket_folder = false;   // the last folder of an "auto" path
  std::string admin_socket;          // path, "auto" resolved; empty = none
  std::optional<gid_t> admin_group;  // may use it beside the daemon's user and root; nullopt = none
  std::string listen;                // host:port; empty = no TCP
  std::string metrics;               // host:port of the metrics; empty = none
  int metrics_spaces = 0;            // that have series of their own
  bool page = false;                 // serve the page on the metrics' address
  // ZeroMQ addresses; empty = none.
  std::string events_publish, events_replay;
  std::string events_topic;  // of what is published
  uint32_t events_kept = 0;  // of the last events, for who follows them
  std::string token_file;    // path, "auto" resolved; TCP callers must send its token
  std::string tls_certificate, tls_key, tls_client_ca;  // paths; empty = none
  std::string access, audit_log;                        // paths; empty = none
  std::string directory;                                // path of the SSD tier, "auto" resolved
  std::string arena;  // path of the arena file, "auto" resolved; empty = private memory
  bool insecure = false;
  base::Size ram;
  SsdMode ssd_mode = SsdMode::kAuto;
  base::Size ssd;  // for kSize
  uint64_t ssd_floor_bytes = 0;
  std::optional<uint64_t> ssd_write_rate;  // bytes a second; 0 = no limit, nullopt = auto
  uint32_t ssd_shallow_tokens = 0;
  double ssd_write_share = 0;  // SSD bytes for each byte asked for; 0 = no limit
  std::string ssd_id_file;     // file that remembers which store the directory held; empty = none
  // Where spans go (daemon/tracing_settings.h).
  struct Tracing {
    std::optional<CollectorAddress> collector;  // nullopt = no call is traced
    std::string headers;                        // of the environment, each with its line break
    std::string headers_file, ca_file;          // paths, "auto" resolved; empty = none
    std::string unusable;                       // why what OTEL_* variables say cannot be used
    double ratio = 0;                           // of the calls without a traceparent
  } tracing;
  // The store that hosts share (daemon/remote_settings.h).
  struct Remote {
    std::string url;  // empty = none
    std::string key_file, tenant, user, password_file, ca_file, cert_file, cert_key_file;
    bool insecure = false;
    uint64_t write_rate = 0;  // bytes a second; 0 = no limit
    double write_share = 0;   // bytes for each byte asked for; 0 = no limit
  } remote;
  bool coarser_on_misses = true;
  double snapshot_share = 0.25;  // part of the RAM for pages
  double coarser_above = 0;      // part of the RAM tier in use; 0 = never
  uint32_t block_tokens = 0;
  uint64_t segment_bytes = 0;
  bool direct_io = true;
  bool trust_model_names = false;
  std::chrono::milliseconds load_wait{0};
  std::chrono::milliseconds drain_deadline{0};
  std::chrono::milliseconds log_interval{0};  // 0 = no stats lines
  std::chrono::microseconds slow_request{0};  // 0 = none is warned of
  std::string log_level;
  int threads = 0;
  int max_sessions = 0;

  std::vector<Setting> settings;     // all of them, in the order of --help
  std::vector<std::string> unknown;  // PREFIXD_* variables that are no setting, with a hint

  // Sets the effective value of setting `name` that people see.
  void Echo(const std::string& name, const std::string& value);
};

// Returns the "auto" arena of the daemon that listens on `socket`: the same path at every start.
std::string AutoArenaPath(const std::string& socket);

// Returns the "auto" file of the TCP token.
std::string AutoTokenPath(const std::string& socket);

// Returns the file in `folder` in which "auto" remembers the store of `directory`.
std::string AutoIdFilePath(const std::string& folder, const std::string& directory);

using Environment = std::map<std::string, std::string>;
Environment ProcessEnvironment();

struct LoadedConfig {
  Config config;
  std::string print;  // not empty: help or version was asked for; print it and exit 0
};
// `args` does not include the program's name. InvalidArgument: an unknown flag, key or section, a
// value that does not parse (with its name and source), a file that cannot be read, a socket's path
// that is too long or taken by the other socket, a --listen beyond loopback without --insecure.
absl::StatusOr<LoadedConfig> LoadConfig(const std::vector<std::string>& args,
                                        const Environment& environment);

}  // namespace prefixd::daemon
