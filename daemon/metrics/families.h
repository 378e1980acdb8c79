// Builds what a scrape shows: families of samples, each of one name and one meaning.
//
// Not thread-safe: a scrape makes one.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "block/answer.h"
#include "prometheus/metric_family.h"

namespace prefixd::daemon {

using Labels = std::initializer_list<std::pair<const char*, std::string_view>>;

class Families {
 public:
  // Each adds a sample to the family `name`, which the first sample makes: `help` is one sentence.
  // Requires: a family has one type, and each sample other labels.
  void Counter(const char* name, const char* help, double value, Labels labels = {});
  void Gauge(const char* name, const char* help, double value, Labels labels = {});
  // For values whose meaning this build does not know.
  void Untyped(const char* name, const char* help, double value, Labels labels = {});
  // Shows the buckets from 16 us to 16.8 s, in seconds.
  void Histogram(const char* name, const char* help, const block::LatencyHistogram& times,
                 Labels labels = {});
  // Shows the buckets from 128 ms to 24.9 days, in seconds.
  void Histogram(const char* name, const char* help, const block::AgeHistogram& ages,
                 Labels labels = {});

  // Returns the families in the order in which they were made.
  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  prometheus::ClientMetric& Add(prometheus::MetricType type, const char* name, const char* help,
                                Labels labels);
  void AddBuckets(const std::array<uint64_t, 32>& buckets, size_t first, size_t last, double unit_s,
                  prometheus::ClientMetric::Histogram* to);

  std::vector<prometheus::MetricFamily> families_;
  std::map<std::string, size_t, std::less<>> places_;  // by name, in families_
};

}  // namespace prefixd::daemon
