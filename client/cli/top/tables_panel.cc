#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/size.h"
#include "client/cli/names.h"
#include "client/cli/top/panels.h"
#include "client/cli/top/text.h"
#include "client/cli/units.h"
#include "client/cli/views.h"

namespace prefixd::cli {
namespace {

constexpr size_t kPrefixesOfOnce = 12;  // lines with their titles, where the screen has no end

using Look = TopLine::Look;

struct Column {
  std::string title;
  size_t width = 0;
  bool left = false;
};

std::string Row(const std::vector<Column>& columns, const std::vector<std::string>& cells,
                bool utf8) {
  std::string row;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (i > 0) row += "  ";
    const std::string cell = Shown(cells[i], utf8);
    row += columns[i].left ? Left(cell, columns[i].width) : Right(cell, columns[i].width);
  }
  return row;
}

// Marks the title of the column that the table is sorted by.
std::string Sorted(const TopView& view, SpaceOrder order, const char* title) {
  return view.order == order ? absl::StrCat("*", title) : title;
}

std::vector<Column> SpaceColumns(const TopView& view, size_t columns) {
  std::vector<Column> all = {{"SPACE", columns < 100 ? 8u : 12u, true},
                             {Sorted(view, SpaceOrder::kModel, "MODEL"), 0, true},
                             {Sorted(view, SpaceOrder::kHitRate, "HIT"), 7},
                             {Sorted(view, SpaceOrder::kAsked, "ASKED/S"), 9},
                             {Sorted(view, SpaceOrder::kTokens, "TOKENS"), 11},
                             {Sorted(view, SpaceOrder::kRam, "RAM"), 9},
                             {Sorted(view, SpaceOrder::kSsd, "SSD"), 9}};
  size_t taken = 2 * (all.size() - 1);
  for (const Column& column : all) taken += column.width;
  all[1].width = columns > taken + 6 ? std::min<size_t>(columns - taken, 60) : 6;
  return all;
}

std::vector<std::string> SpaceCells(const v1::SpaceStats& space, const Flow& recent,
                                    size_t id_digits) {
  const auto found = recent.spaces.find(space.space_id());
  const TokenFlow flow = found == recent.spaces.end() ? TokenFlow() : found->second;
  const double asked =
      recent.seconds > 0 ? static_cast<double>(flow.requested) / recent.seconds : 0;
  return {ShortId(space.space_id()).substr(0, id_digits),
          space.model(),
          PercentText(std::min(flow.restorable(), flow.requested), flow.requested),
          CountText(static_cast<uint64_t>(std::llround(asked))),
          CountText(space.stored_tokens()),
          base::FormatBytes(space.ram_extent_bytes()),
          base::FormatBytes(space.ssd_page_bytes())};
}

// Returns the first row that is shown so that `chosen` is, of `shown` rows.
size_t FirstRow(size_t chosen, size_t shown) { return chosen < shown ? 0 : chosen - shown + 1; }

std::vector<TopLine> SpaceTableOf(const TopView& view, size_t columns, size_t room) {
  if (view.latest->stats.spaces_hidden()) {
    return {{"spaces: shown on the admin socket only, which was not asked"}};
  }
  const std::vector<v1::SpaceStats> spaces = SortedSpaces(view);
  if (spaces.empty()) return {{"no spaces yet: no worker has opened one"}};
  if (room < 2) return {};
  size_t chosen = 0;
  for (size_t i = 0; i < spaces.size(); ++i) {
    if (spaces[i].space_id() == view.chosen) chosen = i;
  }
  const std::vector<Column> layout = SpaceColumns(view, columns);
  std::vector<std::string> titles;
  for (const Column& column : layout) titles.push_back(column.title);
  std::vector<TopLine> lines = {{Row(layout, titles, view.utf8), Look::kBold}};
  const size_t shown = std::min(spaces.size(), room - 1);
  const size_t first = FirstRow(chosen, shown);
  const Flow recent = view.history.Last(kRecentS);
  for (size_t i = first; i < first + shown; ++i) {
    lines.push_back({Row(layout, SpaceCells(spaces[i], recent, layout[0].width), view.utf8),
                     i == chosen && view.keys ? Look::kReverse : Look::kPlain});
  }
  return lines;
}

std::vector<TopLine> SessionTable(const TopView& view, size_t columns, size_t room) {
  if (view.latest->sessions.empty() || room < 3) return {};
  const size_t for_worker = columns > 75 ? std::min<size_t>(columns - 63, 40) : 12;
  const std::vector<Column> layout = {{"SESSION", 16, true}, {"WORKER", for_worker, true},
                                      {"READS", 8, true},    {"AGE", 12},
                                      {"LEASES", 7},         {"LEASED", 10}};
  std::vector<TopLine> lines = {
      {""},
      {Row(layout, {"SESSION", "WORKER", "READS", "AGE", "LEASES", "LEASED"}, view.utf8),
       Look::kBold}};
  for (const auto& [name, session] : view.latest->sessions) {
    if (lines.size() == room) break;
    lines.push_back({Row(layout,
                         {HexId(name), session.worker(),
                          !session.attached()    ? "cut off"
                          : session.maps_arena() ? "in place"
                                                 : "copies",
                          UptimeText(session.age_s()), CountText(session.leases()),
                          base::FormatBytes(session.leased_bytes())},
                         view.utf8)});
  }
  return lines;
}

// Returns the prefixes of the space that is drilled into, or of all spaces, each with its space.
std::vector<TopLine> PrefixTable(const TopView& view, size_t room) {
  if (room < 3) return {};
  std::vector<Column> layout = {
      {"HOTTEST PREFIX", 30, true}, {"REQUESTS", 8}, {"LAST READ", 12}, {"RAM", 10}};
  if (view.drilled.empty()) layout.push_back({"SPACE", 8, true});
  std::vector<std::string> titles;
  for (const Column& column : layout) titles.push_back(column.title);
  std::vector<TopLine> lines = {{""}, {Row(layout, titles, view.utf8), Look::kBold}};
  const std::vector<std::string> names = PrefixNames(view.latest->prefixes);
  for (int i = 0; i < view.latest->prefixes.prefixes_size(); ++i) {
    const v1::Prefix& prefix = view.latest->prefixes.prefixes(i);
    if (!view.drilled.empty() && prefix.space_id() != view.drilled) continue;
    if (lines.size() == room) break;
    std::vector<std::string> cells = {names[static_cast<size_t>(i)], CountText(prefix.requests()),
                                      UptimeText(prefix.age_s()),
                                      base::FormatBytes(prefix.ram_bytes())};
    if (view.drilled.empty()) cells.push_back(ShortId(prefix.space_id()).substr(0, 8));
    lines.push_back({Row(layout, cells, view.utf8)});
  }
  return lines.size() > 2 ? lines : std::vector<TopLine>();
}

}  // namespace

std::vector<TopLine> TablesPanel(const TopView& view, size_t columns, size_t room) {
  // Spaces come first. The others get what is left, and a third each of a screen with room for all.
  const size_t third = room >= 14 ? room / 3 : 0;
  const std::vector<TopLine> prefixes =
      PrefixTable(view, room == SIZE_MAX ? kPrefixesOfOnce : third);
  const size_t for_sessions = std::min(third, view.latest->sessions.size() + 2);
  const size_t taken = room == SIZE_MAX ? 0 : prefixes.size() + for_sessions;
  std::vector<TopLine> lines = SpaceTableOf(view, columns, room - taken);
  lines.insert(lines.end(), prefixes.begin(), prefixes.end());
  const size_t left = room == SIZE_MAX ? room : room - std::min(room, lines.size());
  for (TopLine& line : SessionTable(view, columns, left)) lines.push_back(std::move(line));
  if (lines.size() > room) lines.resize(room);
  return lines;
}

std::vector<TopLine> SpacePanel(const TopView& view) {
  for (const v1::SpaceStats& space : view.latest->stats.spaces()) {
    if (space.space_id() != view.drilled) continue;
    const Flow recent = view.history.Last(kRecentS);
    const auto found = recent.spaces.find(view.drilled);
    const TokenFlow flow = found == recent.spaces.end() ? TokenFlow() : found->second;
    const TokenFlow all = TotalsOf(view.latest->stats).spaces[view.drilled];
    return {
        {absl::StrCat("space ", ShortId(space.space_id()), "  ", space.model()), Look::kBold},
        {absl::StrCat("formats ", absl::StrJoin(space.formats(), ", "), "; blocks of ",
                      space.block_tokens(), " tokens")},
        {absl::StrCat("tokens  ", CountText(all.requested), " asked, ", CountText(all.restorable()),
                      " found, ", CountText(all.used), " used since it was opened")},
        {absl::StrCat("minute  ", CountText(flow.requested), " asked, ",
                      PercentText(flow.ram, flow.restorable()), " of hits in ram, ",
                      PercentText(flow.ssd, flow.restorable()), " on ssd, ",
                      PercentText(flow.far, flow.restorable()), " far")},
        {absl::StrCat("holds   ", CountText(space.stored_tokens()), " tokens in ",
                      Plural(space.blocks(), "block"), " of ", Plural(space.ends(), "sequence"))},
        {absl::StrCat("bytes   ", base::FormatBytes(space.ram_extent_bytes()), " in ram, ",
                      base::FormatBytes(space.ssd_page_bytes()), " on ssd, ",
                      base::FormatBytes(space.dirty_bytes()), " in ram only")}};
  }
  return {{absl::StrCat("space ", ShortId(view.drilled), " is gone: Esc goes back"), Look::kBold}};
}

std::vector<TopLine> LeasesPanel(const TopView& view, size_t room) {
  std::vector<TopLine> lines;
  const std::vector<Column> layout = {
      {"LEASE", 16, true}, {"WORKER", 24, true}, {"TOKENS", 10}, {"BYTES", 10}, {"AGE", 12}};
  for (const v1::ListLeasesReply::Lease& lease : view.latest->leases) {
    if (lease.space_id() != view.drilled) continue;
    const auto session = view.latest->sessions.find(lease.session());
    lines.push_back({Row(
        layout,
        {HexId(lease.lease()),
         session == view.latest->sessions.end() ? "" : session->second.worker(),
         CountText(lease.tokens()), base::FormatBytes(lease.bytes()), UptimeText(lease.age_s())},
        view.utf8)});
  }
  if (lines.empty()) {
    lines = {{"nobody reads it now"}};
  } else {
    lines.insert(
        lines.begin(),
        {Row(layout, {"LEASE", "WORKER", "TOKENS", "BYTES", "AGE"}, view.utf8), Look::kBold});
  }
  const size_t half = room == SIZE_MAX ? kPrefixesOfOnce : room / 2;
  const std::vector<TopLine> prefixes = PrefixTable(view, half);
  lines.resize(std::min(lines.size(), room - prefixes.size()));
  lines.insert(lines.end(), prefixes.begin(), prefixes.end());
  return lines;
}

}  // namespace prefixd::cli
