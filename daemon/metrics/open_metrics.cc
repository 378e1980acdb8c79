#include "daemon/metrics/open_metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "spdlog/fmt/fmt.h"

#include "base/bytes.h"
#include "daemon/metrics/stats_families.h"

namespace prefixd::daemon {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// With as many digits as prometheus-cpp: a bucket has one label `le`, whichever format was scraped.
std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{:.16g}", value);
}

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\n", "\\n"}, {"\"", "\\\""}});
}

class Writer {
 public:
  explicit Writer(const Exemplars* exemplars) : exemplars_(exemplars) {}

  void Add(const MetricFamily& family) {
    absl::string_view name = family.name;
    const bool counts = family.type == MetricType::Counter && absl::ConsumeSuffix(&name, "_total");
    absl::StrAppend(&text_, "# TYPE ", name, " ", TypeName(family, counts), "\n");
    absl::StrAppend(&text_, "# HELP ", name, " ", Escaped(family.help), "\n");
    for (const ClientMetric& metric : family.metric) AddMetric(family, metric);
  }
  std::string Take() {
    text_ += "# EOF\n";
    return std::move(text_);
  }

 private:
  static const char* TypeName(const MetricFamily& family, bool counts) {
    if (counts) return "counter";
    if (family.type == MetricType::Gauge) return "gauge";
    return family.type == MetricType::Histogram ? "histogram" : "unknown";
  }

  void AddMetric(const MetricFamily& family, const ClientMetric& metric) {
    switch (family.type) {
      case MetricType::Counter:
        return AddSample(family.name, metric, Number(metric.counter.value));
      case MetricType::Gauge:
        return AddSample(family.name, metric, Number(metric.gauge.value));
      case MetricType::Histogram:
        return AddHistogram(family, metric);
      default:
        return AddSample(family.name, metric, Number(metric.untyped.value));
    }
  }

  void AddHistogram(const MetricFamily& family, const ClientMetric& metric) {
    const ClientMetric::Histogram& times = metric.histogram;
    const std::string bucket = family.name + "_bucket";
    double above = -kInfinity;
    const auto add = [&](double up_to, uint64_t count) {
      AddSample(bucket, metric, absl::StrCat(count, ExemplarOf(family, metric, above, up_to)),
                Number(up_to));
      above = up_to;
    };
    for (const ClientMetric::Bucket& b : times.bucket) add(b.upper_bound, b.cumulative_count);
    add(kInfinity, times.sample_count);
    AddSample(family.name + "_count", metric, absl::StrCat(times.sample_count));
    AddSample(family.name + "_sum", metric, Number(times.sample_sum));
  }

  // Returns " # {...} 0.0021 1520879607.789", or "" without one.
  std::string ExemplarOf(const MetricFamily& family, const ClientMetric& metric, double above,
                         double up_to) const {
    if (exemplars_ == nullptr || family.name != kRequestDuration) return "";
    const auto verb = std::ranges::find(metric.label, "verb", &ClientMetric::Label::name);
    if (verb == metric.label.end()) return "";
    const std::optional<Exemplar> call = exemplars_->Find(verb->value, above, up_to);
    if (!call.has_value()) return "";
    return fmt::format(" # {{trace_id=\"{}\",span_id=\"{}\"}} {} {:.3f}",
                       base::ToHex(call->trace_id), base::ToHex(call->span_id),
                       Number(call->seconds), call->unix_s);
  }

  // `le`: "" for what is no bucket.
  void AddSample(const std::string& name, const ClientMetric& metric, const std::string& value,
                 const std::string& le = "") {
    std::vector<std::string> labels;
    for (const ClientMetric::Label& label : metric.label)
      labels.push_back(absl::StrCat(label.name, "=\"", Escaped(label.value), "\""));
    if (!le.empty()) labels.push_back(absl::StrCat("le=\"", le, "\""));
    text_ += name;
    if (!labels.empty()) absl::StrAppend(&text_, "{", absl::StrJoin(labels, ","), "}");
    absl::StrAppend(&text_, " ", value, "\n");
  }

  const Exemplars* const exemplars_;
  std::string text_;
};

// One of the types that a client takes: "text/plain;version=0.0.4;q=0.5".
struct Taken {
  std::string type;
  std::string version;  // "" = any
  double q = 1;
};

Taken ParseTaken(absl::string_view range) {
  Taken taken;
  for (absl::string_view part : absl::StrSplit(range, ';')) {
    part = absl::StripAsciiWhitespace(part);
    if (taken.type.empty()) {
      taken.type = absl::AsciiStrToLower(part);
    } else if (absl::ConsumePrefix(&part, "version=")) {
      taken.version = std::string(part);
    } else if (absl::ConsumePrefix(&part, "q=") && !absl::SimpleAtod(part, &taken.q)) {
      taken.q = 0;
    }
  }
  return taken;
}

}  // namespace

bool PrefersOpenMetrics(std::string_view accept) {
  double open = 0, text = 0;
  for (const absl::string_view range :
       absl::StrSplit(absl::string_view(accept.data(), accept.size()), ',')) {
    const Taken taken = ParseTaken(range);
    if (taken.type == "application/openmetrics-text" &&
        (taken.version.empty() || taken.version == "1.0.0")) {
      open = std::max(open, taken.q);
    } else if (taken.type == "text/plain") {
      text = std::max(text, taken.q);
    }
  }
  return open > 0 && open >= text;
}

std::string WriteOpenMetrics(const std::vector<MetricFamily>& families,
                             const Exemplars* exemplars) {
  Writer writer(exemplars);
  for (const MetricFamily& family : families) writer.Add(family);
  return writer.Take();
}

}  // namespace prefixd::daemon
