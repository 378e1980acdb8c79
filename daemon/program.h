// The daemon as a program: from a configuration to a served cache, and down again without losing
// what was stored.
#pragma once
#include <chrono>
#include <future>
#include <memory>

#include "absl/status/statusor.h"

#include "cache/cache.h"
#include "daemon/budgets.h"
#include "daemon/config.h"
#include "daemon/event_publisher.h"
#include "daemon/log.h"
#include "daemon/metrics/endpoint.h"
#include "daemon/server.h"
#include "daemon/tracing/tracer.h"

namespace prefixd::daemon {

// Not thread-safe: one thread starts it, serves and drains.
class Program {
 public:
  // Measures the machine, opens the cache (which recovers what the SSD holds) and listens; logs the
  // result. Echoes the effective budgets into the settings. InvalidArgument: a setting that no
  // start can satisfy.
  static absl::StatusOr<std::unique_ptr<Program>> Start(Config config);

  // Serves until SIGTERM or SIGINT, then drains. Returns an ExitCode. Requires: both signals are
  // blocked in every thread.
  // While another process has the arena, it serves from private memory. Once the arena is free, it
  // drains and opens anew in this process, as a restart would: sessions attach again.
  int Serve();

 private:
  explicit Program(Config config) : given_(std::move(config)) {}
  absl::Status Open();
  absl::Status PublishEvents();
  absl::Status ListenForMetrics();  // once, and keeps the address until the program ends
  void LogStart(std::chrono::steady_clock::time_point start) const;
  int ServeUntilSignal();  // 0 = an arena that another process had is free now
  // Saves what it can, then takes server and cache down. A signal that comes meanwhile sets *stop,
  // or ends the process if *stop is set already. Returns an ExitCode.
  int Drain(bool* stop);
  cache::FlushResult FlushWhileServing(base::Deadline deadline);
  std::future<cache::FlushResult> BeginFlush(base::Deadline deadline);
  int LogStop(uint64_t saved, uint64_t unsaved, bool shared) const;
  void LogStopping(int signal) const;
  void LogStats() const;
  void CountLogLoss();
  absl::Status StartTracing();
  void CountSpans();
  void NameArena() const;  // writes beside the arena whose it is, for prefixctl arenas
  void LookAtIndex();      // tells who asks for health once it is whole
  void LookAtArena();      // logs when its tmpfs begins or ends to limit it

  const Config given_;
  Config config_;  // `given_` with what Open found
  bool has_ssd_ = false;
  bool loaded_ = false;         // the index, as of the last look
  bool arena_limited_ = false;  // by its tmpfs, as of the last look
  LogLoss counted_;             // log losses that the cache has counted
  Exporter::Totals counted_spans_;
  std::unique_ptr<Tracer> tracer_;  // null: none; hears of the cache, so destroyed after it
  std::unique_ptr<cache::Cache> cache_;
  std::unique_ptr<EventPublisher> publisher_;  // null: none; follows the cache, so destroyed first
  std::unique_ptr<Server> server_;             // after the cache that it serves, so destroyed first
  std::unique_ptr<MetricsEndpoint> metrics_;   // null: none; shows the cache, so destroyed first
};

// Blocks the signals that Serve waits for, in this thread and in those that it starts later.
void BlockStopSignals();

}  // namespace prefixd::daemon
