// Decides which calls are traced, and takes their spans.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "daemon/tracing/exemplars.h"
#include "daemon/tracing/exporter.h"
#include "daemon/tracing/load_traces.h"
#include "daemon/tracing/span.h"
#include "wire/trace_context.h"

namespace prefixd::daemon {

// Thread-safe. No call of it waits, but Stop().
class Tracer {
 public:
  struct Options {
    ExporterOptions exporter;
    double root_ratio = 0;  // of the calls without a valid traceparent; the others say themselves
  };
  explicit Tracer(Options options);
  // Returns one for this daemon, with ExporterOptions' limits.
  static std::unique_ptr<Tracer> Start(HttpServer collector, double root_ratio);

  // Whether a call is traced that came with `parent`, or without a valid one.
  bool Samples(const std::optional<TraceContext>& parent) const;
  void Take(Spans spans) { exporter_.Take(std::move(spans)); }
  // The reads from SSD that go on behind a traced Acquire.
  LoadTraces& loads() { return loads_; }
  Exemplars& exemplars() { return exemplars_; }

  Exporter::Totals totals() const { return exporter_.totals(); }
  // Sends what is left, for ExporterOptions::stop_patience at most.
  void Stop() { exporter_.Stop(); }

 private:
  const double root_ratio_;
  Exporter exporter_;
  LoadTraces loads_;
  Exemplars exemplars_;
};

// Random, never all zero.
SpanId NewSpanId();
TraceId NewTraceId();

}  // namespace prefixd::daemon
