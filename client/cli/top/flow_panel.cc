#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/size.h"
#include "client/cli/top/chart.h"
#include "client/cli/top/panels.h"
#include "client/cli/top/text.h"
#include "client/cli/units.h"
#include "client/cli/views.h"

namespace prefixd::cli {
namespace {

using Look = TopLine::Look;
constexpr size_t kAxisColumns = 6;  // "100% |"

std::string RateText(double rate) {
  if (rate < 0) return "-";
  char text[16];
  std::snprintf(text, sizeof(text), "%.1f %%", 100 * rate);
  return text;
}

TokenFlow TokensOf(const TopView& view, const Flow& flow) {
  if (view.drilled.empty()) return flow.tokens;
  const auto found = flow.spaces.find(view.drilled);
  return found == flow.spaces.end() ? TokenFlow() : found->second;
}

double PerSecond(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

std::string CountRate(uint64_t count, const Flow& flow) {
  const double rate = PerSecond(static_cast<double>(count), flow.seconds);
  return absl::StrCat(CountText(static_cast<uint64_t>(std::llround(rate))), "/s");
}

std::string ByteRate(uint64_t bytes, const Flow& flow) {
  const double rate = PerSecond(static_cast<double>(bytes), flow.seconds);
  return absl::StrCat(base::FormatBytes(static_cast<uint64_t>(std::llround(rate))), "/s");
}

// Returns "240 ms", "12.5 s", "3 h 4 min".
std::string AgeText(double ms) {
  return ms < 1000 ? LatencyText(ms * 1000) : SecondsText(ms / 1000);
}

double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

uint64_t RamBytes(const v1::GetStatsReply& stats) {
  uint64_t bytes = 0;
  for (const v1::Count& part : stats.ram_parts()) bytes += part.value();
  return bytes;
}

// Returns the newest points, one for each column of the chart, as hit rates.
std::vector<double> Rates(const TopView& view, size_t columns) {
  const auto& points = view.history.points();
  const size_t shown = std::min(columns, points.size());
  std::vector<double> rates(columns - shown, -1);
  for (size_t i = points.size() - shown; i < points.size(); ++i) {
    rates.push_back(HitRate(TokensOf(view, points[i])));
  }
  return rates;
}

// Returns the line below the chart: how far back it goes.
std::string TimeAxis(const TopView& view, size_t columns) {
  const auto& points = view.history.points();
  double seconds = 0;
  for (size_t i = points.size() - std::min(columns, points.size()); i < points.size(); ++i) {
    seconds += points[i].seconds;
  }
  const std::string now = "now";
  const std::string from = points.empty() ? "" : UptimeText(seconds) + " ago";
  const size_t shown = std::min(columns, points.size());
  const size_t at = kAxisColumns + columns - shown;
  const size_t end = kAxisColumns + columns;
  std::string line = std::string(std::min(at, end - std::min(end, from.size() + 4)), ' ') + from;
  if (line.size() + now.size() < end) line.append(end - now.size() - line.size(), ' ').append(now);
  return line;
}

std::string TierLine(const char* name, uint64_t part, uint64_t whole, size_t bar,
                     const TopView& view, uint64_t hits, uint64_t all_hits) {
  return absl::StrCat(
      name, "  ", Bar(Share(part, whole), bar, view.utf8), "  ", Right(PercentText(part, whole), 7),
      "  ", Left(absl::StrCat(base::FormatBytes(part), " of ", base::FormatBytes(whole)), 23), "  ",
      Right(PercentText(hits, all_hits), 7), " of hits");
}

std::string FarLine(const TopView& view, size_t bar, const Flow& recent) {
  const v1::Remote& remote = view.latest->stats.remote();
  int given_up = 0;
  for (const v1::Remote::Server& server : remote.servers()) given_up += server.open() ? 1 : 0;
  const int answering = remote.servers_size() - given_up;
  const uint64_t hits = recent.tokens.restorable();
  return absl::StrCat(
      "far  ",
      Bar(Share(static_cast<uint64_t>(answering), static_cast<uint64_t>(remote.servers_size())),
          bar, view.utf8),
      "  ", Right(absl::StrCat(answering, "/", remote.servers_size()), 7), "  ",
      Left(!remote.known() ? "servers, not known yet"
           : given_up == 0 ? "servers answer"
                           : "servers answer: TROUBLE",
           23),
      "  ", Right(PercentText(recent.tokens.far, hits), 7), " of hits");
}

std::string EvictionLine(const Flow& recent, const Flow& totals) {
  const auto idle = [](const Flow& flow) {
    const double ms = MedianIdleMs(flow.evictions);
    return ms < 0 ? std::string("-") : AgeText(ms);
  };
  return absl::StrCat("evicts ", ByteRate(recent.bytes.evicted, recent), "; median idle time ",
                      idle(recent), " last minute, ", idle(totals), " since start");
}

std::string DiskLine(const TopView& view, const Flow& recent, const Flow& totals) {
  const v1::GetStatsReply& stats = view.latest->stats;
  const uint64_t written = totals.bytes.ssd_written();
  const double days = totals.seconds / 86400;
  std::string wear = base::FormatBytes(written);
  // Less than an hour tells nothing of a day.
  if (totals.seconds >= 3600) {
    char text[48];
    std::snprintf(text, sizeof(text), ", %.2f of its size a day",
                  Share(written, stats.ssd_budget_bytes()) / days);
    wear += text;
  }
  return absl::StrCat("disk  reads ", ByteRate(recent.bytes.ssd_read, recent), ", writes ",
                      ByteRate(recent.bytes.ssd_written(), recent), "; wear ", wear, ", ",
                      PercentText(totals.bytes.ssd_rewritten, written), " of it again");
}

std::string HolderLine(const v1::GetStatsReply& stats) {
  return absl::StrCat(Plural(stats.sessions(), "session"), ", ", Plural(stats.leases(), "lease"),
                      " of ", base::FormatBytes(stats.leased_bytes()), ", ",
                      Plural(stats.pins(), "pin"), " of ", base::FormatBytes(stats.pinned_bytes()),
                      ", ", Plural(stats.reservations(), "reservation"));
}

}  // namespace

std::vector<TopLine> HitRatePanel(const TopView& view, size_t columns, size_t chart_rows) {
  const Flow now = view.history.Last(0);
  const Flow recent = view.history.Last(kRecentS);
  const Flow totals = TotalsOf(view.latest->stats);
  const auto rate = [&](const Flow& flow) { return RateText(HitRate(TokensOf(view, flow))); };
  std::vector<TopLine> lines = {{absl::StrCat("hit rate  ", rate(now), " now, ", rate(recent),
                                              " last minute, ", rate(totals), " since start"),
                                 Look::kBold}};
  const size_t width = columns > kAxisColumns ? columns - kAxisColumns : 0;
  const std::vector<std::string> chart = Chart(Rates(view, width), chart_rows, view.utf8);
  for (size_t i = 0; i < chart.size(); ++i) {
    const char* const mark = i == 0 ? "100% |" : i + 1 == chart.size() ? "  0% |" : "     |";
    lines.push_back({mark + chart[i]});
  }
  lines.push_back({TimeAxis(view, width)});
  return lines;
}

std::vector<TopLine> FlowPanel(const TopView& view, size_t columns) {
  const v1::GetStatsReply& stats = view.latest->stats;
  const Flow recent = view.history.Last(kRecentS);
  const Flow totals = TotalsOf(stats);
  const size_t bar = std::clamp<size_t>(columns / 4, 10, 60);
  const uint64_t hits = recent.tokens.restorable();
  std::vector<TopLine> lines;
  lines.push_back(
      {absl::StrCat("tokens  ", CountRate(recent.tokens.requested, recent), " asked, ",
                    CountRate(hits, recent), " found, ", CountRate(recent.tokens.used, recent),
                    " used; ", CountRate(recent.requests, recent), " requests")});
  lines.push_back({absl::StrCat("saved   ", CountText(totals.tokens.used), " tokens, ",
                                SecondsText(totals.seconds_saved), " since start; ",
                                CountText(recent.tokens.used), " tokens, ",
                                SecondsText(recent.seconds_saved), " last minute")});
  lines.push_back({TierLine("ram", RamBytes(stats), stats.ram_budget_bytes(), bar, view,
                            recent.tokens.ram, hits)});
  if (stats.ssd_budget_bytes() > 0) {
    lines.push_back({TierLine("ssd", stats.ssd_file_bytes(), stats.ssd_budget_bytes(), bar, view,
                              recent.tokens.ssd, hits)});
  }
  if (stats.has_remote()) lines.push_back({FarLine(view, bar, recent)});
  lines.push_back({EvictionLine(recent, totals)});
  if (stats.ssd_budget_bytes() > 0) lines.push_back({DiskLine(view, recent, totals)});
  if (stats.has_remote()) {
    lines.push_back({absl::StrCat("far   reads ", ByteRate(recent.bytes.far_read, recent),
                                  ", writes ", ByteRate(recent.bytes.far_written, recent), "; ",
                                  base::FormatBytes(totals.bytes.far_read), " and ",
                                  base::FormatBytes(totals.bytes.far_written), " since start")});
  }
  lines.push_back({HolderLine(stats)});
  return lines;
}

}  // namespace prefixd::cli
