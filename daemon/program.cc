#include "daemon/program.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <future>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

#include "base/own_file.h"
#include "base/size.h"
#include "base/status.h"
#include "base/version.h"
#include "daemon/access/gate.h"
#include "daemon/drain_progress.h"
#include "daemon/heap_trim.h"
#include "daemon/known_store.h"
#include "daemon/listen_address.h"
#include "daemon/metrics/collector.h"
#include "daemon/remote_settings.h"
#include "daemon/request_log.h"
#include "daemon/tracing_settings.h"
#include "os/process.h"
#include "wire/limits.h"

namespace prefixd::daemon {
namespace {

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// Waits for a stop signal. Returns it, or 0 after `limit` (0 = no limit).
int WaitForSignal(std::chrono::milliseconds limit) {
  return os::WaitForSignal(StopSignals(), limit.count() > 0 ? std::optional(limit) : std::nullopt);
}

constexpr std::chrono::seconds kLookInterval(1);

// Returns how many bytes workers may have sent of messages that are not whole: one message of the
// largest size and 8 pieces of pages, as several workers send at a time, or a 64th of the RAM
// budget if that is more; 64 MiB at most.
uint64_t MessageBytes(uint64_t ram_bytes) {
  constexpr uint64_t kPieces = 8 * wire::kMaxPieceBytes;
  return std::min(std::max(ram_bytes / 64, wire::TokenMessageBytes(ram_bytes) + kPieces),
                  uint64_t{64} << 20);
}

// Returns true for an error that a disk may get over: the tier is opened then, without a restart.
bool MayPass(int error) {
  return error == EROFS || error == ENOSPC || error == EDQUOT || error == EIO;
}

absl::Status PrepareDirectory(const std::string& directory) {
  PREFIXD_RETURN_IF_ERROR(base::CheckWay(directory, "directory: " + directory));
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error && MayPass(error.value())) return absl::OkStatus();
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat("directory: cannot make ", directory, ": ",
                                                      error.message(), "; --ssd off does without"));
  }
  if (::access(directory.c_str(), R_OK | W_OK | X_OK) != 0 && !MayPass(errno)) {
    return absl::FailedPreconditionError(
        absl::StrCat("directory: ", directory, " is not writable: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

void LogLine(cache::LogLevel level, const std::string& line) {
  switch (level) {
    case cache::LogLevel::kInfo:
      return spdlog::info("{}", line);
    case cache::LogLevel::kWarning:
      return spdlog::warn("{}", line);
    case cache::LogLevel::kError:
      return spdlog::error("{}", line);
  }
}

cache::Options CacheOptions(const Config& config, const Budgets& budgets) {
  cache::Options options;
  options.ram_budget_bytes = budgets.ram_bytes;
  options.ssd_budget_bytes = budgets.ssd_bytes;
  options.directory = config.directory;
  options.direct_io = config.direct_io;
  options.arena_path = config.arena;
  options.trust_model_names = config.trust_model_names;
  options.block_tokens = config.block_tokens;
  options.segment_bytes = config.segment_bytes;
  options.max_events = config.events_kept;
  options.ssd_free_floor_bytes = config.ssd_floor_bytes / 2;
  if (!budgets.ssd_waits_why.empty()) options.ssd_open_free_bytes = config.ssd_floor_bytes;
  options.open_within = config.load_wait;
  options.ssd_write_bytes_per_s = budgets.ssd_write_rate;
  options.ssd_write_share = config.ssd_write_share;
  options.ssd_shallow_tokens = config.ssd_shallow_tokens;
  options.coarser_on_misses = config.coarser_on_misses;
  options.coarser_above = config.coarser_above;
  options.snapshot_share = config.snapshot_share;
  options.version = kVersion;
  options.log = LogLine;
  return options;
}

// Puts the effective budgets behind shares and "auto" ("20%: 3.6 GiB"). A size stays as it is
// written.
void EchoBudgets(const Budgets& budgets, Config* config) {
  const auto echo = [&](const char* name, uint64_t bytes) {
    for (const Setting& setting : config->settings) {
      if (setting.name == name) {
        return config->Echo(name, absl::StrCat(setting.value, ": ", base::FormatBytes(bytes)));
      }
    }
  };
  if (config->ram.percent > 0) echo("ram", budgets.ram_bytes);
  if (budgets.ssd_bytes == 0) {
    config->Echo("ssd", "off");
  } else if (config->ssd_mode == SsdMode::kAuto || config->ssd.percent > 0) {
    echo("ssd", budgets.ssd_bytes);
  }
}

absl::StatusOr<ServerClaims> ClaimSockets(const Config& config) {
  if (config.make_socket_folder) {
    std::error_code error;  // Claim says that there is none
    std::filesystem::create_directory(std::filesystem::path(config.socket).parent_path(), error);
  }
  ServerClaims claims;
  PREFIXD_ASSIGN_OR_RETURN(claims.socket, SocketGuard::Claim(config.socket));
  if (!config.admin_socket.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(claims.admin_socket, SocketGuard::Claim(config.admin_socket));
  }
  return claims;
}

void LogSettings(const Config& config) {
  for (const Setting& setting : config.settings) {
    spdlog::info("config {}={} ({})", setting.name, setting.value, setting.source);
  }
  for (const std::string& name : config.unknown)
    spdlog::warn("config {} is set but is not a setting", name);
}

}  // namespace

void BlockStopSignals() {
  const sigset_t signals = StopSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

absl::StatusOr<std::unique_ptr<Program>> Program::Start(Config config) {
  std::unique_ptr<Program> program(new Program(std::move(config)));
  PREFIXD_RETURN_IF_ERROR(program->Open());
  return program;
}

absl::Status Program::Open() {
  config_ = given_;
  loaded_ = false;
  const auto start = std::chrono::steady_clock::now();
  // First: a second daemon on a socket makes nothing before it finds that out.
  PREFIXD_ASSIGN_OR_RETURN(ServerClaims claims, ClaimSockets(config_));
  std::string missing;
  if (config_.ssd_mode != SsdMode::kOff) {
    PREFIXD_ASSIGN_OR_RETURN(missing, MissingStore(config_.ssd_id_file, config_.directory));
    if (!missing.empty()) config_.ssd_mode = SsdMode::kOff;
  }
  if (config_.ssd_mode != SsdMode::kOff) {
    PREFIXD_RETURN_IF_ERROR(PrepareDirectory(config_.directory));
  }
  PREFIXD_ASSIGN_OR_RETURN(const Machine machine, MeasureMachine(config_.directory));
  Budgets budgets = PlanBudgets(config_, machine);
  if (!missing.empty()) budgets.ssd_off_why = missing;
  EchoBudgets(budgets, &config_);
  spdlog::info("prefixd {} starts, pid {}", kVersion, ::getpid());
  LogSettings(config_);
  spdlog::info("ram tier: {} of {} available", base::FormatBytes(budgets.ram_bytes),
               base::FormatBytes(machine.available_memory));
  has_ssd_ = budgets.ssd_bytes > 0;
  if (has_ssd_) {
    spdlog::info("ssd tier: {} in {}, {} of the disk's {} are free or its own",
                 base::FormatBytes(budgets.ssd_bytes), config_.directory,
                 base::FormatBytes(machine.disk_free), base::FormatBytes(machine.disk_bytes));
    if (!budgets.ssd_waits_why.empty()) {
      spdlog::warn("ssd tier: waits for room, {}", budgets.ssd_waits_why);
    }
    if (!budgets.ssd_short_of.empty()) {
      spdlog::warn("ssd tier: the disk has {}; the tier grows to that, not to {}",
                   budgets.ssd_short_of, base::FormatBytes(budgets.ssd_bytes));
    }
    if (budgets.ssd_write_rate > 0) {
      spdlog::info(
          "ssd tier: writes {} a second over a day, then only what is likely to be used again",
          base::FormatBytes(budgets.ssd_write_rate));
    }
  } else {
    spdlog::warn("ssd tier: off, {}; nothing survives a reboot", budgets.ssd_off_why);
  }
  PREFIXD_RETURN_IF_ERROR(ListenForMetrics());
  PREFIXD_RETURN_IF_ERROR(StartTracing());
  if (!config_.access.empty() && !config_.arena.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(const Principals principals, Gate::ReadFile(config_.access));
    if (principals.tenants().size() > 1) {
      spdlog::warn(
          "arena: {} is not used, as {} names several tenants and the socket's group can read the "
          "file: pages are in private memory",
          config_.arena, config_.access);
      config_.arena.clear();
    }
  }
  cache::Options cache_options = CacheOptions(config_, budgets);
  PREFIXD_ASSIGN_OR_RETURN(cache_options.remote, OpenRemote(config_.remote));
  PREFIXD_ASSIGN_OR_RETURN(cache_, cache::Cache::Open(cache_options));
  if (!missing.empty()) cache_->Count("ssd.store_missing");
  // Empty while the tier is not open yet.
  const std::string instance = cache::Cache::StoreInstance(config_.directory);
  if (has_ssd_ && !instance.empty()) {
    if (absl::Status status = RememberStore(config_.ssd_id_file, config_.directory, instance);
        !status.ok()) {
      spdlog::warn("{}", std::string(status.message()));
    }
  }
  std::optional<Token> token;
  if (!config_.listen.empty() && config_.access.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(token, LoadToken(config_.token_file));
  }
  const ServerOptions options{.socket = config_.socket,
                              .admin_socket = config_.admin_socket,
                              .admin_group = config_.admin_group,
                              .listen = config_.listen,
                              .token = token,
                              .tls = {.certificate = config_.tls_certificate,
                                      .key = config_.tls_key,
                                      .client_ca = config_.tls_client_ca},
                              .access_file = config_.access,
                              .audit_log = config_.audit_log,
                              .threads = config_.threads,
                              .max_sessions = config_.max_sessions,
                              .token_message_bytes = wire::TokenMessageBytes(budgets.ram_bytes),
                              .message_bytes = MessageBytes(budgets.ram_bytes),
                              .slow_request = config_.slow_request,
                              .tracer = tracer_.get(),
                              .version = kVersion,
                              .settings = config_.settings};
  PREFIXD_ASSIGN_OR_RETURN(server_, Server::Start(cache_.get(), options, std::move(claims)));
  if (metrics_ != nullptr) {
    metrics_->Show(std::make_shared<Collector>([cache = cache_.get()] { return cache->GetStats(); },
                                               static_cast<size_t>(config_.metrics_spaces)),
                   tracer_ == nullptr ? nullptr : &tracer_->exemplars());
    if (Page* const page = metrics_->page(); page != nullptr) {
      page->Show(std::make_shared<ServedSource>(cache_.get(), server_.get()));
    }
  }
  PREFIXD_RETURN_IF_ERROR(PublishEvents());
  LookAtArena();
  NameArena();
  LogStart(start);
  return absl::OkStatus();
}

absl::Status Program::PublishEvents() {
  if (config_.events_publish.empty()) {
    if (config_.events_replay.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("events-replay: nothing is published; set events-publish");
  }
  PREFIXD_ASSIGN_OR_RETURN(publisher_,
                           EventPublisher::Start(cache_.get(), {.publish = config_.events_publish,
                                                                .replay = config_.events_replay,
                                                                .topic = config_.events_topic}));
  for (const std::string& address :
       {publisher_->publish_endpoint(), publisher_->replay_endpoint()}) {
    if (address.empty()) continue;
    spdlog::info("events: published at {}", address);
    if (!EventPublisher::IsLocal(address)) {
      spdlog::warn(
          "events: {} is not loopback: other machines can read the token ids of what is "
          "stored, unencrypted",
          address);
    }
  }
  return absl::OkStatus();
}

absl::Status Program::ListenForMetrics() {
  if (config_.metrics.empty() || metrics_ != nullptr) return absl::OkStatus();
  PREFIXD_ASSIGN_OR_RETURN(
      metrics_,
      MetricsEndpoint::Start(config_.metrics, config_.page ? std::make_unique<Page>() : nullptr));
  PREFIXD_ASSIGN_OR_RETURN(ListenAddress address, ParseListenAddress(config_.metrics));
  address.port = metrics_->port();
  spdlog::info("metrics: http://{}/metrics", ToString(address));
  if (config_.page) spdlog::info("page: http://{}/page/", ToString(address));
  if (!address.loopback)
    spdlog::warn("metrics: other machines can read them; they name models and tenants");
  if (!address.loopback && config_.page)
    spdlog::warn("page: other machines can read it; it names workers, requests and paths");
  return absl::OkStatus();
}

void Program::LogStart(std::chrono::steady_clock::time_point start) const {
  const cache::ArenaPlace arena = cache_->arena();
  if (arena.shared) {
    spdlog::info("arena: shared, {} of up to {}", config_.arena,
                 base::FormatBytes(arena.file_bytes));
  } else if (arena.held_by_another) {
    spdlog::warn(
        "arena: private memory as long as another process has {}, which is looked at every second "
        "and taken over once it is free: until then pages travel by Fetch and Put, and what is in "
        "RAM only does not survive a kill",
        config_.arena);
  } else {
    spdlog::log(config_.arena.empty() ? spdlog::level::info : spdlog::level::warn,
                "arena: private memory{}: pages travel by Fetch and Put, and what is in RAM only "
                "does not survive a kill",
                config_.arena.empty() ? "" : ", " + config_.arena + " cannot be used");
  }
  if (!config_.admin_socket.empty()) spdlog::info("admin socket: {}", config_.admin_socket);
  if (server_->port() != 0) {
    const char* const tls = !config_.tls_client_ca.empty()     ? ", TLS with client certificates"
                            : !config_.tls_certificate.empty() ? ", TLS"
                            : config_.insecure                 ? ", unencrypted"
                                                               : "";
    spdlog::info("tcp: listening on {} port {}{}, for callers {} {}", config_.listen,
                 server_->port(), tls,
                 config_.access.empty() ? "with the token of" : "that are named in",
                 config_.access.empty() ? config_.token_file : config_.access);
  }
  spdlog::info("listening on {}", config_.socket);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  spdlog::info("serving after {:.3f} s", took.count());
}

void Program::LogStats() const { spdlog::info("{}", StatsLine(cache_->GetStats())); }

void Program::CountLogLoss() {
  const LogLoss loss = LostOfLog();
  if (loss.dropped > counted_.dropped)
    cache_->Count("log.dropped", loss.dropped - counted_.dropped);
  if (loss.limited > counted_.limited)
    cache_->Count("log.limited", loss.limited - counted_.limited);
  counted_ = loss;
}

absl::Status Program::StartTracing() {
  const Config::Tracing& tracing = config_.tracing;
  if (tracer_ != nullptr) return absl::OkStatus();
  if (!tracing.unusable.empty()) spdlog::warn("tracing: off, {}", tracing.unusable);
  if (!tracing.collector.has_value()) return absl::OkStatus();
  PREFIXD_ASSIGN_OR_RETURN(HttpServer collector, OpenCollector(tracing));
  tracer_ = Tracer::Start(std::move(collector), tracing.ratio);
  spdlog::info("tracing: spans go to {}", ToString(*tracing.collector));
  return absl::OkStatus();
}

void Program::CountSpans() {
  if (tracer_ == nullptr) return;
  const Exporter::Totals now = tracer_->totals();
  const auto count = [this](const char* counter, uint64_t value, uint64_t counted) {
    if (value > counted) cache_->Count(counter, value - counted);
  };
  count("trace.spans_exported", now.exported, counted_spans_.exported);
  count("trace.spans_dropped", now.dropped, counted_spans_.dropped);
  count("trace.exports_failed", now.failures, counted_spans_.failures);
  counted_spans_ = now;
}

void Program::NameArena() const {
  const cache::ArenaPlace arena = cache_->arena();
  if (!arena.shared) return;
  const std::string socket = std::filesystem::absolute(config_.socket).lexically_normal().string();
  const absl::Status named = base::WriteOwnFile(arena.path + ".locks/socket", socket + "\n");
  if (!named.ok()) spdlog::debug("arena: {}", std::string(named.message()));
}

void Program::LookAtArena() {
  const cache::ArenaPlace arena = cache_->arena();
  if (arena.limited_to.has_value() == arena_limited_) return;
  arena_limited_ = arena.limited_to.has_value();
  const std::string folder = std::filesystem::path(arena.path).parent_path().string();
  if (!arena_limited_) {
    spdlog::info("arena: {} has room for all of it again", folder);
    return;
  }
  spdlog::warn(
      "arena limited by {}: {}, of the {} that the RAM budget gives it; pages beyond that are "
      "evicted. Give the tmpfs room, name a file on another one (--arena), or lower --ram",
      folder, base::FormatBytes(*arena.limited_to), base::FormatBytes(arena.capacity_bytes));
}

void Program::LookAtIndex() {
  if (loaded_ || !cache_->WaitLoaded(std::chrono::steady_clock::now())) return;
  loaded_ = true;
  server_->SayLoaded();
}

int Program::ServeUntilSignal() {
  const bool logs = config_.log_interval.count() > 0;
  HeapTrim heap_trim;
  auto next_log = std::chrono::steady_clock::now() + config_.log_interval;
  auto next_look = std::chrono::steady_clock::now();
  for (;;) {
    std::chrono::milliseconds turn = heap_trim.NextLook(std::chrono::steady_clock::now());
    if (logs) turn = std::min<std::chrono::milliseconds>(turn, config_.log_interval);
    if (const int signal = WaitForSignal(turn); signal != 0) return signal;
    if (heap_trim.IsDue(HeapUseNow(), std::chrono::steady_clock::now())) {
      os::TrimHeap();
      heap_trim.Trimmed(HeapUseNow(), std::chrono::steady_clock::now());
    }
    if (std::chrono::steady_clock::now() >= next_look) {
      next_look = std::chrono::steady_clock::now() + kLookInterval;
      CountLogLoss();
      CountSpans();
      LookAtArena();
      LookAtIndex();
      if (cache_->CouldHaveArena()) return 0;
    }
    if (!logs || std::chrono::steady_clock::now() < next_log) continue;
    next_log += config_.log_interval;
    LogStats();
  }
}

int Program::Serve() {
  for (;;) {
    const int signal = ServeUntilSignal();
    bool stop = signal != 0;
    if (stop) {
      LogStopping(signal);
    } else {
      spdlog::warn(
          "arena: {} is free again: saving private memory to the SSD tier, then serving from it; "
          "sessions end and attach anew",
          config_.arena);
    }
    const int code = Drain(&stop);
    if (stop) return code;
    if (const absl::Status status = Open(); !status.ok()) {
      spdlog::error("cannot open again: {}", std::string(status.message()));
      return kExitStart;
    }
    cache_->Count("arena.taken_over", cache_->arena().shared ? 1 : 0);
  }
}

void Program::LogStopping(int signal) const {
  spdlog::info(
      "stopping on {}: up to {} s to save what is in RAM only; a second signal stops at once",
      signal == SIGTERM ? "SIGTERM" : "SIGINT", config_.drain_deadline.count() / 1000);
}

// Flushes until no request runs, or `deadline`. New sessions and reservations are refused, so the
// running requests come to an end; what they store meanwhile is saved too.
cache::FlushResult Program::FlushWhileServing(base::Deadline deadline) {
  cache::FlushResult all;
  for (;;) {
    const bool idle = server_->idle();
    const cache::FlushResult result = cache_->Flush(deadline);
    all.flushed_bytes += result.flushed_bytes;
    all.dirty_bytes = result.dirty_bytes;
    if (idle || std::chrono::steady_clock::now() >= deadline) return all;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// Flushes on a thread of its own. If the system gives none, flushes before it returns, and no
// signal is heard meanwhile.
std::future<cache::FlushResult> Program::BeginFlush(base::Deadline deadline) {
  const auto flush = [this, deadline] { return FlushWhileServing(deadline); };
  try {
    return std::async(std::launch::async, flush);
  } catch (const std::system_error&) {
    std::promise<cache::FlushResult> done;
    done.set_value(flush());
    return done.get_future();
  }
}

int Program::Drain(bool* stop) {
  server_->BeginDrain(static_cast<uint32_t>(config_.drain_deadline.count()));
  const base::Deadline deadline = std::chrono::steady_clock::now() + config_.drain_deadline;
  const DrainProgress progress(cache_->GetStats().dirty_bytes, std::chrono::steady_clock::now(),
                               deadline);
  std::future<cache::FlushResult> flush = BeginFlush(deadline);
  auto next_line = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (flush.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    const int signal = WaitForSignal(std::chrono::milliseconds(20));
    if (signal != 0 && !std::exchange(*stop, true)) {
      LogStopping(signal);
    } else if (signal != 0) {
      spdlog::warn("second signal: stopping at once, {} unsaved",
                   base::FormatBytes(cache_->GetStats().dirty_bytes));
      FlushLog(std::chrono::milliseconds(200));
      ::_exit(kExitForced);
    }
    if (std::chrono::steady_clock::now() < next_line) continue;
    next_line += std::chrono::seconds(1);
    spdlog::info("{}{}",
                 progress.Line(cache_->GetStats().dirty_bytes, std::chrono::steady_clock::now()),
                 server_->idle() ? "" : ", requests running");
  }
  cache::FlushResult result = flush.get();
  if (has_ssd_) {
    cache_->Count("drain.saved_bytes", result.flushed_bytes);
    cache_->Count("drain.unsaved_bytes", result.dirty_bytes);
  }
  LogStats();
  server_->Stop();
  if (metrics_ != nullptr) metrics_->Show(nullptr);
  if (metrics_ != nullptr && metrics_->page() != nullptr) metrics_->page()->Show(nullptr);
  // A reservation made before the drain may have been stored to after the last flush.
  result.flushed_bytes += cache_->Flush(deadline).flushed_bytes;
  const uint64_t unsaved = cache_->GetStats().dirty_bytes;
  const bool shared = cache_->arena().shared;
  server_.reset();
  if (*stop && tracer_ != nullptr) tracer_->Stop();
  publisher_.reset();
  cache_.reset();
  return *stop ? LogStop(result.flushed_bytes, unsaved, shared) : kExitOk;
}

int Program::LogStop(uint64_t saved, uint64_t unsaved, bool shared) const {
  if (unsaved > 0 && has_ssd_) {
    spdlog::warn("stopped: {} saved, {} NOT saved{}", base::FormatBytes(saved),
                 base::FormatBytes(unsaved),
                 shared ? "; the arena file keeps them until this machine restarts" : "");
    return kExitUnsaved;
  }
  const char* rest = has_ssd_ ? "nothing unsaved"
                     : shared ? "there is no ssd tier: the rest is in the arena file until this "
                                "machine restarts"
                              : "the rest is gone: there is no ssd tier";
  spdlog::info("stopped: {} saved on the way down, {}", base::FormatBytes(saved), rest);
  return kExitOk;
}

}  // namespace prefixd::daemon
