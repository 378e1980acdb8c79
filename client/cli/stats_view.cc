// prefixctl stats:
//
//   now
//     uptime_s            11,520
//     ...
//   counters since start
//     match.exact              3
//     ...
//   latencies              count     mean      p50      p90      p99
//     rpc.acquire          1,200   180 us   170 us   240 us   900 us
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

#include "client/cli/table.h"
#include "client/cli/units.h"
#include "client/cli/views.h"

namespace prefixd::cli {
namespace {

using Align = Table::Align;

std::string Gauges(const v1::GetStatsReply& stats) {
  Table table({{""}, {"", Align::kRight}});
  const auto row = [&](const std::string& name, uint64_t value) {
    table.AddRow({name, CountText(value)});
  };
  row("uptime_s", static_cast<uint64_t>(std::max(0.0, stats.uptime_s())));
  row("ram.budget_bytes", stats.ram_budget_bytes());
  for (const v1::Count& part : stats.ram_parts()) {
    row(absl::StrCat("ram.", part.name(), "_bytes"), part.value());
  }
  row("ssd.budget_bytes", stats.ssd_budget_bytes());
  row("ssd.file_bytes", stats.ssd_file_bytes());
  row("dirty_bytes", stats.dirty_bytes());
  row("sessions", stats.sessions());
  row("leases", stats.leases());
  row("leased_bytes", stats.leased_bytes());
  row("reservations", stats.reservations());
  row("pins", stats.pins());
  row("pinned_bytes", stats.pinned_bytes());
  if (!stats.spaces_hidden()) row("spaces", static_cast<uint64_t>(stats.spaces_size()));
  table.AddRow({"saved", SecondsText(stats.seconds_saved())});
  return "now\n" + table.Text(2);
}

std::string Counters(const v1::GetStatsReply& stats) {
  if (stats.counters().empty()) return "counters since start: none yet\n";
  Table table({{""}, {"", Align::kRight}});
  for (const v1::Count& counter : stats.counters()) {
    table.AddRow({counter.name(), CountText(counter.value())});
  }
  return "counters since start\n" + table.Text(2);
}

std::string Latencies(const v1::GetStatsReply& stats) {
  if (stats.latencies().empty()) return "latencies: none yet\n";
  Table table({{"latency"},
               {"count", Align::kRight},
               {"mean", Align::kRight},
               {"p50", Align::kRight},
               {"p90", Align::kRight},
               {"p99", Align::kRight}});
  for (const v1::Latency& latency : stats.latencies()) {
    const double count = static_cast<double>(latency.count());
    const double mean = count > 0 ? static_cast<double>(latency.sum_us()) / count : 0;
    table.AddRow({latency.name(), CountText(latency.count()), LatencyText(mean),
                  LatencyText(QuantileMicros(latency, 0.5)),
                  LatencyText(QuantileMicros(latency, 0.9)),
                  LatencyText(QuantileMicros(latency, 0.99))});
  }
  return table.Text() + "(percentiles come from power-of-two buckets: within a factor of two)\n";
}

}  // namespace

double QuantileMicros(const v1::Latency& latency, double share) {
  uint64_t counted = 0;  // sum of the buckets, which may differ from latency.count()
  for (uint64_t bucket : latency.buckets()) counted += bucket;
  const double wanted = share * static_cast<double>(counted);
  double below = 0;
  for (int i = 0; i < latency.buckets_size(); ++i) {
    const double here = static_cast<double>(latency.buckets(i));
    if (here > 0 && below + here >= wanted) {
      const double first = i == 0 ? 0 : std::ldexp(1, i);
      return first + (std::ldexp(1, i + 1) - first) * (wanted - below) / here;
    }
    below += here;
  }
  return 0;
}

std::string StatsView(const v1::GetStatsReply& stats) {
  if (!TellsSums(stats)) {
    return "the sums of this prefixd are not told to a caller of one tenant: see prefixctl "
           "spaces\n";
  }
  return absl::StrCat(Gauges(stats), "\n", Counters(stats), "\n", Latencies(stats));
}

}  // namespace prefixd::cli
