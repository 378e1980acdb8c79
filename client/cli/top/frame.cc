// 80 columns:
//
//   prefixd 0.1.0 serving, up 3 h 12 min  unix:///run/prefixd/prefixd.sock           every 1 s
//   hit rate   81.0 % now   80.2 % last minute   79.1 % since start
//   100% |  ▁▃▅▇██
//        | ▂██████
//     0% |▃███████
//   ...
#include "client/cli/top/frame.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <tuple>

#include "absl/strings/str_cat.h"

#include "client/cli/top/chart.h"
#include "client/cli/top/panels.h"
#include "client/cli/top/text.h"
#include "client/cli/units.h"

namespace prefixd::cli {
namespace {

using Look = TopLine::Look;
constexpr size_t kChartRowsOfOnce = 3;  // it has one column

// Returns the seconds as the interval was given: "1 s", "0.25 s".
std::string IntervalText(double seconds) { return absl::StrCat(seconds, " s"); }

TopLine Title(const TopView& view, size_t columns) {
  const std::string right =
      view.paused ? " PAUSED " : absl::StrCat(" every ", IntervalText(view.interval_s), " ");
  std::string left = " prefixd ";
  if (view.latest) absl::StrAppend(&left, view.latest->stats.version(), " ");
  if (!view.failure.empty()) {
    left += "DOES NOT ANSWER";
  } else if (view.latest) {
    absl::StrAppend(&left, view.latest->health, ", up ", UptimeText(view.latest->stats.uptime_s()));
  } else {
    left += "is asked";
  }
  absl::StrAppend(&left, "  ", view.address);
  const size_t room = columns > right.size() ? columns - right.size() : 0;
  return {Left(Shown(left, view.utf8), room) + Cut(right, columns), Look::kReverse};
}

std::vector<TopLine> Failure(const TopView& view) {
  if (view.failure.empty()) return {};
  const std::string since = view.failed_s < 1 ? "" : " for " + UptimeText(view.failed_s);
  return {{absl::StrCat("no answer", since, ", trying again: ", view.failure), Look::kBold}};
}

TopLine Keys(const TopView& view) {
  std::string keys = view.drilled.empty()
                         ? "q quit  p pause  s sort  up/down choose  Enter into the space"
                         : "q quit  p pause  Esc back";
  if (view.paused) keys.replace(keys.find("p pause"), 7, "p go on");
  return {keys, Look::kReverse};
}

// Makes every line fit, and shows what the terminal can show.
void FitAll(const TopView& view, const TopSize& size, std::vector<TopLine>* lines) {
  if (size.rows > 0 && lines->size() > size.rows) lines->resize(size.rows);
  for (TopLine& line : *lines) {
    line.text = Shown(line.text, view.utf8);
    if (line.look == Look::kReverse) {
      line.text = Left(line.text, size.columns);
    } else {
      line.text = Cut(line.text, size.columns);
      line.text.erase(line.text.find_last_not_of(' ') + 1);
    }
  }
}

void Append(std::vector<TopLine> more, std::vector<TopLine>* lines) {
  for (TopLine& line : more) lines->push_back(std::move(line));
}

std::vector<TopLine> Below(const TopView& view, size_t columns, size_t room) {
  return view.drilled.empty() ? TablesPanel(view, columns, room) : LeasesPanel(view, room);
}

// Returns how many lines of `free` ones the chart gets: what the tables below leave, from a sixth
// of the screen to a half.
size_t ChartRows(const TopView& view, const TopSize& size, size_t free) {
  const size_t wanted = Below(view, size.columns, SIZE_MAX).size();
  return std::clamp<size_t>(free > wanted ? free - wanted : 0, std::max<size_t>(1, size.rows / 6),
                            std::max<size_t>(1, size.rows / 2));
}

// Returns what stands between the `above` first lines and the last one.
std::vector<TopLine> Panels(const TopView& view, const TopSize& size, size_t above) {
  const std::vector<TopLine> numbers =
      view.drilled.empty() ? FlowPanel(view, size.columns) : SpacePanel(view);
  const auto left = [&](size_t taken) {
    if (size.rows == 0) return SIZE_MAX;
    const size_t all = above + taken + (view.keys ? 1 : 0);
    return size.rows > all ? size.rows - all : 0;
  };
  constexpr size_t kAroundChart = 2;  // the line above it, and the axis
  const size_t chart_rows = size.rows == 0
                                ? kChartRowsOfOnce
                                : ChartRows(view, size, left(kAroundChart + numbers.size()));
  std::vector<TopLine> lines = HitRatePanel(view, size.columns, chart_rows);
  Append(numbers, &lines);
  Append(Below(view, size.columns, left(lines.size())), &lines);
  return lines;
}

}  // namespace

SpaceOrder NextOrder(SpaceOrder order) {
  return order == SpaceOrder::kModel ? SpaceOrder::kAsked
                                     : static_cast<SpaceOrder>(static_cast<int>(order) + 1);
}

std::vector<v1::SpaceStats> SortedSpaces(const TopView& view) {
  if (!view.latest) return {};
  const auto& listed = view.latest->stats.spaces();
  const Flow recent = view.history.Last(kRecentS);
  const auto key = [&](const v1::SpaceStats& space) {
    const auto found = recent.spaces.find(space.space_id());
    const TokenFlow flow = found == recent.spaces.end() ? TokenFlow() : found->second;
    switch (view.order) {
      case SpaceOrder::kAsked:
        return static_cast<double>(flow.requested);
      case SpaceOrder::kHitRate:
        return HitRate(flow);
      case SpaceOrder::kTokens:
        return static_cast<double>(space.stored_tokens());
      case SpaceOrder::kRam:
        return static_cast<double>(space.ram_extent_bytes());
      case SpaceOrder::kSsd:
        return static_cast<double>(space.ssd_page_bytes());
      case SpaceOrder::kModel:
        break;
    }
    return 0.0;
  };
  std::vector<std::pair<double, const v1::SpaceStats*>> keyed;
  for (const v1::SpaceStats& space : listed) keyed.emplace_back(-key(space), &space);
  std::sort(keyed.begin(), keyed.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first, a.second->model(), a.second->space_id()) <
           std::tie(b.first, b.second->model(), b.second->space_id());
  });
  std::vector<v1::SpaceStats> sorted;
  for (const auto& [unused, space] : keyed) sorted.push_back(*space);
  return sorted;
}

std::vector<TopLine> RenderTop(const TopView& view, const TopSize& size) {
  std::vector<TopLine> lines = {Title(view, size.columns)};
  Append(Failure(view), &lines);
  if (view.latest) Append(Panels(view, size, lines.size()), &lines);
  if (view.keys) {
    if (size.rows > 0) lines.resize(size.rows - 1);
    lines.push_back(Keys(view));
  }
  FitAll(view, size, &lines);
  return lines;
}

}  // namespace prefixd::cli
