#include "daemon/program.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <future>

#include "absl/strings/str_cat.h"
#include "google/protobuf/stubs/logging.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"

#include "base/size.h"
#include "base/status.h"
#include "daemon/request_log.h"
#include "daemon/version.h"

namespace prefixd::daemon {
namespace {

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// The signal that came, or 0 after `limit` (0 = no limit).
int WaitForSignal(std::chrono::milliseconds limit) {
  const sigset_t signals = StopSignals();
  const timespec timeout{.tv_sec = limit.count() / 1000,
                         .tv_nsec = limit.count() % 1000 * 1'000'000};
  for (;;) {
    const int signal = limit.count() > 0 ? ::sigtimedwait(&signals, nullptr, &timeout)
                                         : ::sigwaitinfo(&signals, nullptr);
    if (signal > 0) return signal;
    if (errno == EAGAIN) return 0;
  }
}

absl::Status PrepareDirectory(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat("directory: cannot make ", directory, ": ",
                                                      error.message(), "; --ssd off does without"));
  }
  if (::access(directory.c_str(), R_OK | W_OK | X_OK) != 0) {
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
  options.trust_model_names = config.trust_model_names;
  options.block_tokens = config.block_tokens;
  options.segment_bytes = config.segment_bytes;
  options.version = kVersion;
  options.log = LogLine;
  return options;
}

void LogSettings(const Config& config) {
  for (const Setting& setting : config.settings) {
    spdlog::info("config {}={} ({})", setting.name, setting.value, setting.source);
  }
  for (const std::string& name : config.unknown)
    spdlog::warn("config {} is set but is no setting", name);
}

}  // namespace

void BlockStopSignals() {
  const sigset_t signals = StopSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

void StartLog(const std::string& level) {
  auto logger = spdlog::stderr_color_mt("prefixd");
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  // What a caller sends must not fill the log: protobuf reports bad text of requests by itself.
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel, const char*, int, const std::string& line) {
        spdlog::debug("protobuf: {}", line);
      });
}

absl::StatusOr<std::unique_ptr<Program>> Program::Start(Config config) {
  std::unique_ptr<Program> program(new Program(std::move(config)));
  PREFIXD_RETURN_IF_ERROR(program->Open());
  return program;
}

absl::Status Program::Open() {
  if (config_.ssd_mode != SsdMode::kOff) {
    PREFIXD_RETURN_IF_ERROR(PrepareDirectory(config_.directory));
  }
  PREFIXD_ASSIGN_OR_RETURN(const Machine machine, MeasureMachine(config_.directory));
  const Budgets budgets = PlanBudgets(config_, machine);
  config_.Echo("ram", std::to_string(budgets.ram_bytes));
  config_.Echo("ssd", budgets.ssd_bytes == 0 ? "off" : std::to_string(budgets.ssd_bytes));
  spdlog::info("prefixd {} starts, pid {}", kVersion, ::getpid());
  LogSettings(config_);
  spdlog::info("ram tier: {} of {} available", base::FormatBytes(budgets.ram_bytes),
               base::FormatBytes(machine.available_memory));
  has_ssd_ = budgets.ssd_bytes > 0;
  if (has_ssd_) {
    spdlog::info("ssd tier: {} in {}, {} free of {}", base::FormatBytes(budgets.ssd_bytes),
                 config_.directory, base::FormatBytes(machine.disk_free),
                 base::FormatBytes(machine.disk_bytes));
  } else {
    spdlog::warn("ssd tier: off, {}; nothing survives a restart", budgets.ssd_off_why);
  }
  PREFIXD_ASSIGN_OR_RETURN(cache_, cache::Cache::Open(CacheOptions(config_, budgets)));
  const ServerOptions options{.socket = config_.socket,
                              .listen = config_.listen,
                              .threads = config_.threads,
                              .version = kVersion,
                              .settings = config_.settings};
  PREFIXD_ASSIGN_OR_RETURN(server_, Server::Start(cache_.get(), options));
  spdlog::info("listening on {}", config_.socket);
  if (server_->port() != 0) {
    spdlog::info("listening on {} port {}{}", config_.listen, server_->port(),
                 config_.insecure ? ", unencrypted" : "");
  }
  return absl::OkStatus();
}

void Program::LogStats() const { spdlog::info("{}", StatsLine(cache_->GetStats())); }

int Program::Serve() {
  int signal = 0;
  while ((signal = WaitForSignal(config_.log_interval)) == 0) LogStats();
  spdlog::info(
      "stopping on {}: up to {} s to save what is in RAM only; a second signal stops at once",
      signal == SIGTERM ? "SIGTERM" : "SIGINT", config_.drain_deadline.count() / 1000);
  return Drain();
}

int Program::Drain() {
  server_->BeginDrain(static_cast<uint32_t>(config_.drain_deadline.count()));
  const base::Deadline deadline = std::chrono::steady_clock::now() + config_.drain_deadline;
  std::future<cache::FlushResult> flush =
      std::async(std::launch::async, [this, deadline] { return cache_->Flush(deadline); });
  auto next_line = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (flush.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    if (WaitForSignal(std::chrono::milliseconds(20)) != 0) {
      spdlog::warn("second signal: stopping at once, {} unsaved",
                   base::FormatBytes(cache_->GetStats().dirty_bytes));
      ::_exit(kExitForced);
    }
    if (std::chrono::steady_clock::now() < next_line) continue;
    next_line += std::chrono::seconds(1);
    spdlog::info("draining: {} left", base::FormatBytes(cache_->GetStats().dirty_bytes));
  }
  const cache::FlushResult result = flush.get();
  LogStats();
  server_->Stop();
  const uint64_t unsaved = cache_->GetStats().dirty_bytes;
  server_.reset();
  cache_.reset();
  if (unsaved > 0 && has_ssd_) {
    spdlog::warn("stopped: {} saved, {} NOT saved", base::FormatBytes(result.flushed_bytes),
                 base::FormatBytes(unsaved));
    return kExitUnsaved;
  }
  spdlog::info("stopped: {} saved on the way down, {}", base::FormatBytes(result.flushed_bytes),
               has_ssd_ ? "nothing unsaved" : "the rest is gone: there is no ssd tier");
  return kExitOk;
}

}  // namespace prefixd::daemon
