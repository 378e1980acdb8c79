// Sends spans to a collector, on a thread of its own. Whoever has spans never waits for it: what it
// cannot take or send is dropped and counted.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>

#include "daemon/tracing/bounded_queue.h"
#include "daemon/tracing/http_post.h"
#include "daemon/tracing/otlp.h"
#include "daemon/tracing/span.h"
#include "daemon/tracing/stop_signal.h"
#include "os/wake.h"

namespace prefixd::daemon {

struct ExporterOptions {
  HttpServer collector;
  TraceResource resource{};
  size_t queue_calls = 1024;                     // calls whose spans wait; a power of two
  size_t batch_spans = 512;                      // in one message, and up to one call's more
  std::chrono::milliseconds interval{1'000};     // between looks at the queue
  std::chrono::milliseconds timeout{10'000};     // of one message
  std::chrono::milliseconds first_pause{1'000};  // after a failure; the next one is twice as long
  std::chrono::milliseconds longest_pause{
      30'000};                                   // also where the collector asks for a longer one
  int tries = 5;                                 // of one message
  std::chrono::milliseconds stop_patience{500};  // for what is left at the end
};

// Thread-safe.
class Exporter {
 public:
  explicit Exporter(ExporterOptions options);
  ~Exporter();  // Stop()
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  // Takes the spans of a call, or drops them. Never waits.
  void Take(Spans spans);
  // Sends what is left, once, for ExporterOptions::stop_patience at most; drops the rest. What is
  // taken afterwards is dropped.
  void Stop();

  // Since the start. A span is exported or dropped, or still waits.
  struct Totals {
    uint64_t exported = 0;  // spans that the collector took
    uint64_t dropped = 0;   // spans
    uint64_t failures = 0;  // messages that were not taken, each try
  };
  Totals totals() const;

 private:
  void Run();
  void WaitForSpans();  // until the next look, Stop, or a queue that is half full
  void Pause(std::chrono::milliseconds time);  // or until Stop
  Spans NextBatch();
  void Send(const Spans& batch);
  enum class Result { kTaken, kRefused, kLater };
  Result Try(const Spans& batch, const std::string& message, std::chrono::milliseconds* wait);
  // Says in the log that the collector takes spans, or why it does not, when that changes.
  void Note(const std::string& why_not);
  static std::chrono::milliseconds WithJitter(std::chrono::milliseconds pause);

  const ExporterOptions options_;
  BoundedQueue<Spans> queue_;
  std::atomic<uint64_t> exported_{0}, dropped_{0}, failures_{0};
  StopSignal stop_;
  const os::Wake wake_;             // set: the queue is half full
  std::atomic<bool> woken_{false};  // since the thread last looked
  bool failing_ = false;            // of the thread
  std::thread thread_;
};

}  // namespace prefixd::daemon
