#include "daemon/metrics/families.h"

#include <cmath>
#include <numeric>

namespace prefixd::daemon {

prometheus::ClientMetric& Families::Add(prometheus::MetricType type, const char* name,
                                        const char* help, Labels labels) {
  auto place = places_.find(std::string_view(name));
  if (place == places_.end()) {
    place = places_.emplace(name, families_.size()).first;
    families_.push_back({.name = name, .help = help, .type = type, .metric = {}});
  }
  prometheus::ClientMetric& sample = families_[place->second].metric.emplace_back();
  for (const auto& [label, value] : labels) sample.label.push_back({label, std::string(value)});
  return sample;
}

void Families::Counter(const char* name, const char* help, double value, Labels labels) {
  Add(prometheus::MetricType::Counter, name, help, labels).counter.value = value;
}

void Families::Gauge(const char* name, const char* help, double value, Labels labels) {
  Add(prometheus::MetricType::Gauge, name, help, labels).gauge.value = value;
}

void Families::Untyped(const char* name, const char* help, double value, Labels labels) {
  Add(prometheus::MetricType::Untyped, name, help, labels).untyped.value = value;
}

// Bucket i counts [2^i, 2^(i+1)) whole units, and what is measured was cut to whole units: so
// 2^(i+1) units are its upper bound.
void Families::AddBuckets(const std::array<uint64_t, 32>& buckets, size_t first, size_t last,
                          double unit_s, prometheus::ClientMetric::Histogram* to) {
  uint64_t below =
      std::accumulate(buckets.begin(), buckets.begin() + static_cast<long>(first), uint64_t{0});
  for (size_t i = first; i <= last; ++i) {
    below += buckets[i];
    to->bucket.push_back({below, std::ldexp(unit_s, static_cast<int>(i) + 1)});
  }
  // TextSerializer adds the bucket +Inf from the count.
}

void Families::Histogram(const char* name, const char* help, const block::LatencyHistogram& times,
                         Labels labels) {
  prometheus::ClientMetric::Histogram& to =
      Add(prometheus::MetricType::Histogram, name, help, labels).histogram;
  to.sample_count = times.count;
  to.sample_sum = static_cast<double>(times.sum_us) * 1e-6;
  AddBuckets(times.buckets, 3, 23, 1e-6, &to);
}

void Families::Histogram(const char* name, const char* help, const block::AgeHistogram& ages,
                         Labels labels) {
  prometheus::ClientMetric::Histogram& to =
      Add(prometheus::MetricType::Histogram, name, help, labels).histogram;
  to.sample_count = ages.count;
  to.sample_sum = static_cast<double>(ages.sum_ms) * 1e-3;
  AddBuckets(ages.buckets, 6, 30, 1e-3, &to);
}

}  // namespace prefixd::daemon
