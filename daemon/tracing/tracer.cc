#include "daemon/tracing/tracer.h"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/random.h"
#include "base/utf8.h"
#include "base/version.h"

namespace prefixd::daemon {
namespace {

template <typename Id>
Id RandomId() {
  Id id{};
  for (size_t i = 0; i < id.size(); i += sizeof(uint64_t)) {
    const uint64_t word = base::RandomWord();  // never 0
    std::memcpy(id.data() + i, &word, sizeof(word));
  }
  return id;
}

}  // namespace

SpanId NewSpanId() { return RandomId<SpanId>(); }
TraceId NewTraceId() { return RandomId<TraceId>(); }

Tracer::Tracer(Options options)
    : root_ratio_(options.root_ratio),
      exporter_(std::move(options.exporter)),
      loads_([this](Spans spans) { exporter_.Take(std::move(spans)); }) {}

std::unique_ptr<Tracer> Tracer::Start(HttpServer collector, double root_ratio) {
  constexpr size_t kMostOfHost = 255;  // _POSIX_HOST_NAME_MAX
  char host[kMostOfHost + 1] = {};
  ::gethostname(host, sizeof(host) - 1);
  const SpanId instance = NewSpanId();
  const TraceResource resource{.version = kVersion,
                               .instance = base::ToHex(instance),
                               .host = base::Utf8Prefix(host, kMostOfHost)};
  return std::make_unique<Tracer>(
      Options{.exporter = {.collector = std::move(collector), .resource = resource},
              .root_ratio = root_ratio});
}

bool Tracer::Samples(const std::optional<TraceContext>& parent) const {
  if (parent.has_value()) return parent->sampled;
  if (root_ratio_ <= 0) return false;
  return std::ldexp(static_cast<double>(base::RandomWord()), -64) < root_ratio_;
}

}  // namespace prefixd::daemon
