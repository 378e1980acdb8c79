#include "daemon/settings.h"

#include <grp.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/time/time.h"

#include "base/status.h"
#include "daemon/listen_address.h"
#include "daemon/remote_settings.h"
#include "daemon/tracing_settings.h"
#include "os/sockets.h"

namespace prefixd::daemon {
namespace {

absl::Status ReadBool(const std::string& value, bool* to) {
  if (value == "true" || value == "1" || value == "yes" || value == "on") {
    *to = true;
  } else if (value == "false" || value == "0" || value == "no" || value == "off") {
    *to = false;
  } else {
    return Wants(value, "true or false");
  }
  return absl::OkStatus();
}

template <typename Unit>
absl::Status ReadDuration(const std::string& value, Unit* to) {
  absl::Duration duration;
  if (!absl::ParseDuration(value, &duration) || duration < absl::ZeroDuration() ||
      duration > absl::Hours(24 * 365)) {
    return Wants(value, "a time like 500ms, 30s or 2m");
  }
  *to = std::chrono::duration_cast<Unit>(absl::ToChronoNanoseconds(duration));
  return absl::OkStatus();
}

absl::Status ReadBytes(const std::string& value, uint64_t* to) {
  PREFIXD_ASSIGN_OR_RETURN(const base::Size size, base::ParseSize(value));
  if (size.percent > 0) return Wants(value, "a size in bytes: a percentage has no meaning here");
  *to = size.bytes;
  return absl::OkStatus();
}

absl::Status ReadText(const std::string& value, std::string* to) {
  if (value.empty()) return Wants(value, "a path");
  *to = value;
  return absl::OkStatus();
}

std::string Get(const Environment& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

absl::Status ApplySocket(const std::string& value, const Environment& environment, Config* config) {
  if (value != "auto") return ReadText(value, &config->socket);
  config->make_socket_folder = true;
  constexpr const char* kSystem = "/run/prefixd";
  const std::string named = Get(environment, "XDG_RUNTIME_DIR");
  const std::string runtime = named.empty() ? os::FolderForSockets() : named;
  if (::geteuid() == 0 || ::access(kSystem, W_OK) == 0) {
    config->socket = absl::StrCat(kSystem, "/prefixd.sock");
  } else if (!runtime.empty()) {
    config->socket = absl::StrCat(runtime, "/prefixd/prefixd.sock");
  } else {
    return absl::InvalidArgumentError(
        "auto finds no place: /run/prefixd is not writable and XDG_RUNTIME_DIR is not set; name a "
        "path");
  }
  return absl::OkStatus();
}

absl::Status ApplyDirectory(const std::string& value, const Environment& environment,
                            Config* config) {
  if (value != "auto") return ReadText(value, &config->directory);
  constexpr const char* kSystem = "/var/lib/prefixd";
  const std::string cache = Get(environment, "XDG_CACHE_HOME");
  const std::string home = Get(environment, "HOME");
  if (::geteuid() == 0 || ::access(kSystem, W_OK) == 0) {
    config->directory = kSystem;
  } else if (!cache.empty()) {
    config->directory = cache + "/prefixd";
  } else if (!home.empty()) {
    config->directory = home + "/.cache/prefixd";
  } else {
    return absl::InvalidArgumentError(
        "auto finds no place: neither XDG_CACHE_HOME nor HOME is set; name a path");
  }
  return absl::OkStatus();
}

// LoadConfig resolves "auto", which needs the socket's path; for the token file too.
absl::Status ApplyAdminSocket(const std::string& value, const Environment&, Config* config) {
  PREFIXD_RETURN_IF_ERROR(ReadText(value, &config->admin_socket));
  if (value == "off") config->admin_socket.clear();
  return absl::OkStatus();
}

absl::Status ApplyAdminGroup(const std::string& value, const Environment&, Config* config) {
  config->admin_group.reset();
  if (value == "off") return absl::OkStatus();
  gid_t number = 0;
  if (absl::SimpleAtoi(value, &number)) {
    config->admin_group = number;
    return absl::OkStatus();
  }
  const struct group* const named = ::getgrnam(value.c_str());
  if (named == nullptr) return Wants(value, "off, or a group of this host, by name or number");
  config->admin_group = named->gr_gid;
  return absl::OkStatus();
}

absl::Status ApplyListen(const std::string& value, const Environment&, Config* config) {
  config->listen = value == "off" ? "" : value;
  return config->listen.empty() ? absl::OkStatus() : ParseListenAddress(value).status();
}

absl::Status ApplyMetrics(const std::string& value, const Environment&, Config* config) {
  config->metrics = value == "off" ? "" : value;
  return config->metrics.empty() ? absl::OkStatus() : ParseListenAddress(value).status();
}

absl::Status ApplyMetricsSpaces(const std::string& value, const Environment&, Config* config) {
  if (!absl::SimpleAtoi(value, &config->metrics_spaces) || config->metrics_spaces < 0 ||
      config->metrics_spaces > 1000) {
    return Wants(value, "a number of spaces up to 1000");
  }
  return absl::OkStatus();
}

template <std::string Config::*Field>
absl::Status ApplyPath(const std::string& value, const Environment&, Config* config) {
  if (value.empty()) return Wants(value, "off or a path");
  config->*Field = value == "off" ? "" : value;
  return absl::OkStatus();
}

absl::Status ReadEndpoint(const std::string& value, std::string* to) {
  *to = value == "off" ? "" : value;
  if (to->empty() || value.starts_with("tcp://") || value.starts_with("ipc://")) {
    return absl::OkStatus();
  }
  return Wants(value, "off, tcp://HOST:PORT or ipc://PATH");
}

absl::Status ApplyEventsPublish(const std::string& value, const Environment&, Config* config) {
  return ReadEndpoint(value, &config->events_publish);
}

absl::Status ApplyEventsReplay(const std::string& value, const Environment&, Config* config) {
  return ReadEndpoint(value, &config->events_replay);
}

absl::Status ApplyEventsKept(const std::string& value, const Environment&, Config* config) {
  constexpr uint32_t kLeast = 1024, kMost = 16u << 20;
  const bool read = absl::SimpleAtoi(value, &config->events_kept);
  if (read && config->events_kept >= kLeast && config->events_kept <= kMost) {
    return absl::OkStatus();
  }
  return Wants(value, "a number from 1024 to 16777216");
}

absl::Status ApplyRam(const std::string& value, const Environment&, Config* config) {
  PREFIXD_ASSIGN_OR_RETURN(config->ram, base::ParseSize(value));
  if (config->ram.percent <= 0 && config->ram.bytes == 0) return Wants(value, "more than 0");
  return absl::OkStatus();
}

// LoadConfig resolves "auto", which needs the socket's path.
absl::Status ApplyArena(const std::string& value, const Environment&, Config* config) {
  PREFIXD_RETURN_IF_ERROR(ReadText(value, &config->arena));
  if (value == "off") config->arena.clear();
  return absl::OkStatus();
}

absl::Status ApplySsd(const std::string& value, const Environment&, Config* config) {
  config->ssd_mode = value == "auto"  ? SsdMode::kAuto
                     : value == "off" ? SsdMode::kOff
                                      : SsdMode::kSize;
  if (config->ssd_mode != SsdMode::kSize) return absl::OkStatus();
  PREFIXD_ASSIGN_OR_RETURN(config->ssd, base::ParseSize(value));
  if (config->ssd.percent <= 0 && config->ssd.bytes == 0)
    return Wants(value, "more than 0; say off for no SSD tier");
  return absl::OkStatus();
}

absl::Status ApplyWriteRate(const std::string& value, const Environment&, Config* config) {
  if (value == "auto") return absl::OkStatus();
  config->ssd_write_rate = 0;
  return value == "off" ? absl::OkStatus() : ReadBytes(value, &*config->ssd_write_rate);
}

absl::Status ApplyWriteShare(const std::string& value, const Environment&, Config* config) {
  if (value == "off") return absl::OkStatus();
  PREFIXD_ASSIGN_OR_RETURN(const base::Size size, base::ParseSize(value));
  if (size.percent < 1 || size.percent > 100)
    return Wants(value, "a share of what is asked for from 1% to 100%, or off");
  config->ssd_write_share = size.percent / 100;
  return absl::OkStatus();
}

absl::Status ApplyShallow(const std::string& value, const Environment&, Config* config) {
  if (absl::SimpleAtoi(value, &config->ssd_shallow_tokens)) return absl::OkStatus();
  return Wants(value, "a number of tokens");
}

absl::Status ApplyCoarserAbove(const std::string& value, const Environment&, Config* config) {
  if (value == "off") return absl::OkStatus();
  PREFIXD_ASSIGN_OR_RETURN(const base::Size size, base::ParseSize(value));
  if (size.percent < 20 || size.percent > 100)
    return Wants(value, "a share of the RAM tier from 20% to 100%, or off");
  config->coarser_above = size.percent / 100;
  return absl::OkStatus();
}

absl::Status ApplySnapshotShare(const std::string& value, const Environment&, Config* config) {
  PREFIXD_ASSIGN_OR_RETURN(const base::Size size, base::ParseSize(value));
  if (size.percent <= 0 || size.percent > 100)
    return Wants(value, "a share of the RAM for pages, above 0% and up to 100%");
  config->snapshot_share = size.percent / 100;
  return absl::OkStatus();
}

absl::Status ApplyCoarserOnMisses(const std::string& value, const Environment&, Config* config) {
  if (value != "on" && value != "off") return Wants(value, "on or off");
  config->coarser_on_misses = value == "on";
  return absl::OkStatus();
}

// Finds only the folder for "auto": LoadConfig adds the name, which needs the directory's path.
absl::Status ApplyKnown(const std::string& value, const Environment& environment, Config* config) {
  if (value != "auto") {
    PREFIXD_RETURN_IF_ERROR(ReadText(value, &config->ssd_id_file));
    if (value == "off") config->ssd_id_file.clear();
    return absl::OkStatus();
  }
  const std::string state = Get(environment, "XDG_STATE_HOME");
  const std::string home = Get(environment, "HOME");
  if (::geteuid() == 0 || ::access("/var/lib", W_OK) == 0) {
    config->ssd_id_file = "/var/lib/prefixd-known";
  } else if (!state.empty()) {
    config->ssd_id_file = state + "/prefixd-known";
  } else if (!home.empty()) {
    config->ssd_id_file = home + "/.local/state/prefixd-known";
  }
  return absl::OkStatus();
}

absl::Status ApplyBlockTokens(const std::string& value, const Environment&, Config* config) {
  if (!absl::SimpleAtoi(value, &config->block_tokens) ||
      (config->block_tokens != 16 && config->block_tokens != 32 && config->block_tokens != 64 &&
       config->block_tokens != 128)) {
    return Wants(value, "16, 32, 64 or 128");
  }
  return absl::OkStatus();
}

absl::Status ApplySegment(const std::string& value, const Environment&, Config* config) {
  PREFIXD_RETURN_IF_ERROR(ReadBytes(value, &config->segment_bytes));
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  if (config->segment_bytes < kMiB || config->segment_bytes > 1024 * kMiB)
    return Wants(value, "1MiB to 1GiB");
  return absl::OkStatus();
}

absl::Status ApplyLogLevel(const std::string& value, const Environment&, Config* config) {
  for (const char* known : {"debug", "info", "warning", "error", "off"}) {
    if (value == known) {
      config->log_level = value;
      return absl::OkStatus();
    }
  }
  return Wants(value, "debug, info, warning, error or off");
}

absl::Status ApplyThreads(const std::string& value, const Environment&, Config* config) {
  if (!absl::SimpleAtoi(value, &config->threads) || config->threads < 8 || config->threads > 4096) {
    return Wants(value, "a number from 8 to 4096");
  }
  return absl::OkStatus();
}

absl::Status ApplyMaxSessions(const std::string& value, const Environment&, Config* config) {
  if (!absl::SimpleAtoi(value, &config->max_sessions) || config->max_sessions < 1 ||
      config->max_sessions > 65536) {
    return Wants(value, "a number from 1 to 65536");
  }
  return absl::OkStatus();
}

template <std::string Config::Remote::*kField>
absl::Status ApplyRemoteFile(const std::string& value, const Environment&, Config* config) {
  PREFIXD_RETURN_IF_ERROR(ReadText(value, &(config->remote.*kField)));
  if (value == "off") (config->remote.*kField).clear();
  return absl::OkStatus();
}

constexpr SettingRule kSettings[] = {
    {"socket", "auto", "PATH",
     "unix socket to listen on; auto: /run/prefixd/prefixd.sock where that is writable, else under "
     "$XDG_RUNTIME_DIR",
     ApplySocket},
    {"admin-socket", "auto", "PATH",
     "unix socket for prefixctl, mode 0600: all calls of Admin, where the workers' socket and TCP "
     "have sums and settings only; auto: prefixd.admin.sock beside prefixd.sock; off: none",
     ApplyAdminSocket},
    {"admin-group", "off", "GROUP",
     "who may use the admin socket beside prefixd's own user and root: members of this group, of "
     "which prefixd must be one; off: nobody",
     ApplyAdminGroup},
    {"listen", "off", "HOST:PORT",
     "listen on TCP as well, 127.0.0.1:7777 say, for callers with the token; off: unix socket only",
     ApplyListen},
    {"metrics", "off", "HOST:PORT",
     "serve metrics for Prometheus at http://HOST:PORT/metrics, 127.0.0.1:9464 say, to whoever "
     "connects; port 0: a free one, which the log names; off: none",
     ApplyMetrics},
    {"metrics-spaces", "50", "N",
     "spaces that have series of their own in the metrics, those that asked for most tokens; the "
     "others are one, \"other\"",
     ApplyMetricsSpaces},
    {"page", "false", nullptr,
     "serve a page for people, beside the metrics, at http://HOST:PORT/page/: what prefixctl top, "
     "why, spaces, sessions and config show, to whoever connects; wants --metrics",
     [](const std::string& value, const Environment&, Config* config) {
       return ReadBool(value, &config->page);
     }},
    {"events-publish", "off", "ADDRESS",
     "publish what is stored, and its token ids, as vLLM publishes its KV events, for routers: a "
     "ZeroMQ address to bind, tcp://127.0.0.1:5557 say; off: none",
     ApplyEventsPublish},
    {"events-replay", "off", "ADDRESS",
     "where subscribers that missed batches ask for them, tcp://127.0.0.1:5558 say; off: nowhere",
     ApplyEventsReplay},
    {"events-topic", "off", "TEXT",
     "topic of what is published, kv@HOST:PORT@{model} say: {model} becomes the space's model; "
     "off: none",
     [](const std::string& value, const Environment&, Config* config) {
       config->events_topic = value == "off" ? "" : value;
       return absl::OkStatus();
     }},
    {"events-kept", "65536", "N",
     "changes of what is stored that are kept for those who follow them, about 150 bytes each once "
     "somebody does; who falls further behind is sent all that is stored again",
     ApplyEventsKept},
    {"otlp-endpoint", "auto", "URL",
     "OpenTelemetry collector that gets the spans of traced calls, by OTLP over HTTP: "
     "http://localhost:4318/v1/traces say, or https://; auto: what OTEL_EXPORTER_OTLP_ENDPOINT or "
     "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT names, else off; off: no call is traced",
     ApplyOtlpEndpoint},
    {"otlp-headers-file", "auto", "PATH",
     "file, mode 0600, with headers that the collector wants, a key say: lines \"Name: value\"; "
     "auto: OTEL_EXPORTER_OTLP_HEADERS; off: none",
     [](const std::string& value, const Environment&, Config* config) {
       return ReadText(value, &config->tracing.headers_file);
     }},
    {"otlp-ca-file", "auto", "PATH",
     "certificates that sign the collector's, PEM, with https://; auto: "
     "OTEL_EXPORTER_OTLP_CERTIFICATE, else those of this host; off: those of this host",
     [](const std::string& value, const Environment&, Config* config) {
       return ReadText(value, &config->tracing.ca_file);
     }},
    {"trace-ratio", "0", "RATIO",
     "of the calls that come without a trace of their own, so many are traced: 0 to 1; the others "
     "are traced if their caller says so",
     ApplyTraceRatio},
    {"token-file", "auto", "PATH",
     "what callers on TCP must send a copy of; made, mode 0600, where there is none; auto: "
     "prefixd.token beside prefixd.sock",
     [](const std::string& value, const Environment&, Config* config) {
       return ReadText(value, &config->token_file);
     }},
    {"tls-certificate", "off", "PATH",
     "TLS for --listen: the certificate and its chain, PEM, which may be replaced while prefixd "
     "runs; clients connect to tls://HOST:PORT",
     ApplyPath<&Config::tls_certificate>},
    {"tls-key", "off", "PATH", "the key of that certificate, PEM", ApplyPath<&Config::tls_key>},
    {"tls-client-ca", "off", "PATH",
     "authorities, PEM: who connects must show a certificate of one of them; off: needs none",
     ApplyPath<&Config::tls_client_ca>},
    {"access", "off", "PATH",
     "JSON file of who may call, in which role, as which tenant; read again when it changes; off: "
     "the socket's permissions and the token decide",
     ApplyPath<&Config::access>},
    {"audit-log", "off", "PATH",
     "file that gets a line for each call of Admin that changes or shows something, beside the "
     "log; off: the log only",
     ApplyPath<&Config::audit_log>},
    {"insecure", "false", nullptr,
     "allow --listen beyond loopback, unencrypted: who sees the packets has the token, and can "
     "read and write the cache",
     [](const std::string& value, const Environment&, Config* config) {
       return ReadBool(value, &config->insecure);
     }},
    {"directory", "auto", "PATH",
     "where the SSD tier lives; auto: /var/lib/prefixd where that is writable, else prefixd under "
     "$XDG_CACHE_HOME or ~/.cache",
     ApplyDirectory},
    {"ram", "20%", "SIZE",
     "RAM budget: 2GiB, 512MiB, or a share of the memory available at start (cgroup limits count)",
     ApplyRam},
    {"arena", "auto", "PATH",
     "file on a tmpfs that holds the RAM tier: workers read it in place, and it survives kill -9; "
     "auto: a name in /dev/shm that follows from the socket's path; off: private memory",
     ApplyArena},
    {"ssd", "auto", "SIZE",
     "SSD budget: 100GiB, or a share of the disk; auto: 10% of the disk or what is free above the "
     "floor, the smaller; off: none",
     ApplySsd},
    {"ssd-floor", "10GiB", "SIZE",
     "with less than this free on the disk the SSD tier is not opened; with less than half of it "
     "free later, nothing is written until there is more",
     [](const std::string& value, const Environment&, Config* config) {
       return ReadBytes(value, &config->ssd_floor_bytes);
     }},
    {"ssd-write-rate", "auto", "SIZE",
     "bytes a second that the SSD takes over a day, 20MiB say; beyond it only what is likely to be "
     "used again; auto: three times the disk's size a day; off: no limit",
     ApplyWriteRate},
    {"ssd-write-share", "30%", "PERCENT",
     "bytes that the SSD takes for each byte that is asked for, found or stored; as much as it "
     "holds "
     "may be saved up; with less than three quarters of that left only what is likely to be used "
     "again is written, with nothing left nothing; off: no limit",
     ApplyWriteShare},
    {"ssd-shallow-tokens", "3072", "N",
     "what begins in the first so many tokens of a sequence counts as likely to be used again",
     ApplyShallow},
    {"ssd-id-file", "auto", "PATH",
     "file that remembers which store the directory held, so that a disk that is not mounted is "
     "noticed instead of what is below its mount point being filled; auto: below /var/lib or "
     "$XDG_STATE_HOME; off: none",
     ApplyKnown},
    {"remote", "off", "URL",
     "Redis Cluster (or what speaks its protocol) in which hosts share blocks: "
     "redis://HOST:PORT,HOST:PORT or rediss://... with TLS, one or more of its servers; off: none",
     ApplyRemote},
    {"remote-key-file", "off", "PATH",
     "file of 32 random bytes or more, the same on every host, mode 0600, with which names are "
     "made "
     "and contents sealed: openssl rand -out PATH 32",
     ApplyRemoteFile<&Config::Remote::key_file>},
    {"remote-tenant", "default", "NAME", "hosts share with those of the same tenant and key only",
     ApplyRemoteTenant},
    {"remote-user", "off", "NAME", "user of the servers' access list; off: the default user",
     ApplyRemoteFile<&Config::Remote::user>},
    {"remote-password-file", "off", "PATH", "file with the servers' password, mode 0600",
     ApplyRemoteFile<&Config::Remote::password_file>},
    {"remote-ca-file", "off", "PATH",
     "certificates that sign the servers', PEM, with rediss://; off: those of this host",
     ApplyRemoteFile<&Config::Remote::ca_file>},
    {"remote-cert-file", "off", "PATH",
     "this host's certificate, PEM, for servers that ask for one",
     ApplyRemoteFile<&Config::Remote::cert_file>},
    {"remote-cert-key-file", "off", "PATH", "the key of that certificate, PEM",
     ApplyRemoteFile<&Config::Remote::cert_key_file>},
    {"remote-insecure", "false", nullptr,
     "do without a key: whoever reaches the servers can read what is stored, and can make prefixd "
     "serve wrong bytes",
     [](const std::string& value, const Environment&, Config* config) {
       return ReadBool(value, &config->remote.insecure);
     }},
    {"remote-write-rate", "50MiB", "SIZE",
     "bytes a second that are written to the servers over ten minutes; beyond it only what is "
     "likely "
     "to be used again; off: no limit",
     ApplyRemoteWriteRate},
    {"remote-write-share", "off", "PERCENT",
     "bytes that are written to the servers for each byte that is asked for, found or stored; off: "
     "no limit",
     ApplyRemoteWriteShare},
    {"coarser-on-misses", "on", "on|off",
     "while more than 5% of the requested tokens had been given up, until less than 2% are, "
     "workers "
     "that can are told to store new blocks in the next coarser format",
     ApplyCoarserOnMisses},
    {"coarser-above", "off", "PERCENT",
     "the same while more than this share of the RAM tier is in use, 80% say; off: only misses "
     "count",
     ApplyCoarserAbove},
    {"snapshot-share", "25%", "PERCENT",
     "of the RAM for pages, what snapshots of recurrent states take at most: beyond it the coldest "
     "of them go",
     ApplySnapshotShare},
    {"block-tokens", "64", "N",
     "tokens of a KV block where the worker leaves it to the daemon: 16, 32, 64 or 128",
     ApplyBlockTokens},
    {"segment-bytes", "64MiB", "SIZE", "size of a segment file of the SSD tier", ApplySegment},
    {"direct-io", "on", "on|off",
     "read and write the SSD tier past the page cache; off: for filesystems without O_DIRECT",
     [](const std::string& value, const Environment&, Config* config) {
       return ReadBool(value, &config->direct_io);
     }},
    {"trust-model-names", "false", nullptr,
     "accept spaces that name a model without the digest of its weights",
     [](const std::string& value, const Environment&, Config* config) {
       return ReadBool(value, &config->trust_model_names);
     }},
    {"load-wait", "300ms", "TIME",
     "how long a start waits for the index of the SSD tier before it serves; matches are shorter "
     "until the rest is loaded",
     [](const std::string& value, const Environment&, Config* config) {
       return ReadDuration(value, &config->load_wait);
     }},
    {"drain-deadline", "30s", "TIME", "how long a stop may take to save what is in RAM only",
     [](const std::string& value, const Environment&, Config* config) {
       return ReadDuration(value, &config->drain_deadline);
     }},
    {"log-level", "info", "LEVEL", "debug, info, warning, error or off", ApplyLogLevel},
    {"log-interval", "60s", "TIME", "a line of statistics this often; 0: never",
     [](const std::string& value, const Environment&, Config* config) {
       return ReadDuration(value, &config->log_interval);
     }},
    {"slow-request", "1s", "TIME",
     "a lookup or commit that takes longer is a warning in the log, with where the time went; 0: "
     "none",
     [](const std::string& value, const Environment&, Config* config) {
       return ReadDuration(value, &config->slow_request);
     }},
    {"threads", "64", "N",
     "calls that wait for another worker, calls that wait for room or a disk, streams of pages: so "
     "many of each at the same time of one session, fewer beside others; of all together twice as "
     "many; more are answered RESOURCE_EXHAUSTED",
     ApplyThreads},
    {"max-sessions", "512", "N",
     "workers that may be attached at the same time, about 20 KiB each; one process, or one host "
     "behind TCP, may have so many as it leaves to others; more are answered RESOURCE_EXHAUSTED",
     ApplyMaxSessions},
};

}  // namespace

absl::Status Wants(const std::string& value, const char* accepted) {
  return absl::InvalidArgumentError(absl::StrCat("\"", value, "\" is not ", accepted));
}

std::span<const SettingRule> Settings() { return kSettings; }

}  // namespace prefixd::daemon
