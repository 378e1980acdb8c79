// The HTTP server of the metrics: GET /metrics on an address of its own, for Prometheus; and the
// page for people, if it is told to serve one.
//
// It asks for no password and changes nothing. Clients that are slow or send nonsense cost it one
// of few threads for a second; none of them is a thread of a worker's call.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "daemon/page/page.h"
#include "daemon/tracing/exemplars.h"
#include "prometheus/collectable.h"

struct mg_context;
struct mg_connection;

namespace prefixd::daemon {

// Thread-safe.
class MetricsEndpoint {
 public:
  // Listens on a "127.0.0.1:9464" that ParseListenAddress takes; port 0: a free one.
  // FailedPrecondition: it is in use, or not allowed, and the message says which.
  // `page`: served beside the metrics; null = none.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(
      const std::string& address, std::unique_ptr<Page> page = nullptr);
  ~MetricsEndpoint();  // waits for scrapes that run
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  int port() const { return port_; }
  // What scrapes show from now on; null: none, they are answered 503. Those before are not in use
  // any more when this returns. A client that prefers OpenMetrics gets `exemplars` with it; null =
  // none.
  void Show(std::shared_ptr<const prometheus::Collectable> source,
            const Exemplars* exemplars = nullptr) PREFIXD_EXCLUDES(mutex_);
  Page* page() const { return page_.get(); }  // null: none

 private:
  MetricsEndpoint() = default;
  static int Hear(const mg_connection* connection, const char* message);  // civetweb's own lines
  static int Handle(mg_connection* connection, void* self);
  void Answer(mg_connection* connection) PREFIXD_EXCLUDES(mutex_);
  void Knock() const;  // connects to itself
  // Returns what a scrape shows; empty if there is nothing. All scrapes together take at most a
  // tenth of one CPU: the next one waits for as long, or until Show takes its source away.
  std::string Render(bool as_open_metrics) PREFIXD_EXCLUDES(mutex_);

  std::unique_ptr<Page> page_;
  mg_context* context_ = nullptr;
  std::string host_;
  int port_ = 0;
  std::atomic<bool> started_{false};
  std::string heard_;  // the first line before it started: why it did not
  base::Mutex mutex_;  // held while a scrape is made: one at a time
  base::CondVar shown_;
  std::shared_ptr<const prometheus::Collectable> source_ PREFIXD_GUARDED_BY(mutex_);
  const Exemplars* exemplars_ PREFIXD_GUARDED_BY(mutex_) = nullptr;
  std::chrono::steady_clock::time_point next_ PREFIXD_GUARDED_BY(mutex_){};
};

}  // namespace prefixd::daemon
