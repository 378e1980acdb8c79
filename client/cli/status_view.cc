// prefixctl status:
//
//   prefixd 0.1.0 at unix:///run/prefixd/prefixd.sock: serving, up 3 h 12 min
//
//   ram  [########------------]   42.0 %  107.5 MiB of 256.0 MiB  arena 104.0 MiB, index 3.5 MiB
//   ssd  [##------------------]   10.0 %  102.4 MiB of 1.0 GiB    13.5 MiB in RAM only
//   arena  shared: workers on this host read in place; 1,024 pages adopted from the prefixd before
//
//   2 sessions, 1 lease of 13.5 MiB, 0 reservations
//   not shared   1 model: see prefixctl sessions
//
//   tokens since start
//     requested   12,345          asked for by workers
//     matched     10,000  81.0 %  known prefix
//     ...
//   saved 9,990 tokens of prefill, 12.4 s
#include <string>

#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "client/cli/table.h"
#include "client/cli/units.h"
#include "client/cli/views.h"

namespace prefixd::cli {
namespace {

using Align = Table::Align;

std::string Of(uint64_t part, uint64_t whole) {
  return absl::StrCat(base::FormatBytes(part), " of ", base::FormatBytes(whole));
}

std::string Budgets(const v1::GetStatsReply& stats) {
  uint64_t ram = 0;
  std::string parts;
  for (const v1::Count& part : stats.ram_parts()) {
    ram += part.value();
    if (part.value() == 0) continue;
    absl::StrAppend(&parts, parts.empty() ? "" : ", ", part.name(), " ",
                    base::FormatBytes(part.value()));
  }
  Table table({{""}, {""}, {"", Align::kRight}, {""}, {""}});
  table.AddRow({"ram", BarText(ram, stats.ram_budget_bytes()),
                PercentText(ram, stats.ram_budget_bytes()), Of(ram, stats.ram_budget_bytes()),
                parts});
  if (CounterValue(stats, "ssd.store_missing") > 0) {
    return table.Text() +
           "ssd  MISSING: the directory does not hold the store that it held, its disk is not "
           "mounted; see prefixd's log\n";
  }
  if (stats.ssd_budget_bytes() == 0) {
    return table.Text() + "ssd  off: what is cached is lost at a reboot\n";
  }
  const std::string note = absl::StrCat(base::FormatBytes(stats.dirty_bytes()), " in RAM only");
  table.AddRow({"ssd", BarText(stats.ssd_file_bytes(), stats.ssd_budget_bytes()),
                PercentText(stats.ssd_file_bytes(), stats.ssd_budget_bytes()),
                Of(stats.ssd_file_bytes(), stats.ssd_budget_bytes()), note});
  std::string text = table.Text();
  if (CounterValue(stats, "ssd.failing") > 0) {
    text +=
        "ssd  WRITES FAIL: the disk is full or broken, see prefixd's log; the next write, or "
        "`prefixctl flush`, tries again\n";
  }
  if (CounterValue(stats, "ssd.closed") > 0) {
    text += "ssd  CLOSED: its disk takes nothing now and is tried again, see prefixd's log\n";
  }
  if (CounterValue(stats, "ssd.border_waits") > 0) {
    text += "ssd  A CLEAR WAITS for the disk to take it: a restart before may bring it back\n";
  }
  if (const uint64_t copies = CounterValue(stats, "ssd.damaged_copies"); copies > 0) {
    absl::StrAppend(&text, "ssd  ", Plural(copies, "damaged store"), " moved aside, ",
                    base::FormatBytes(CounterValue(stats, "ssd.damaged_bytes")),
                    " until their room is needed\n");
  }
  return text;
}

// Returns what the parts of the RAM budget are for, or "" if the daemon does not say.
std::string Shares(const v1::GetStatsReply& stats) {
  uint64_t pages = 0;
  std::string rest;
  for (const v1::Count& share : stats.ram_shares()) {
    if (share.name() == "arena") pages = share.value();
    if (share.name() == "arena" || share.value() == 0) continue;
    absl::StrAppend(&rest, rest.empty() ? "" : ", ", share.name(), " ",
                    base::FormatBytes(share.value()));
  }
  if (rest.empty()) return "";
  return absl::StrCat("ram  ", base::FormatBytes(pages),
                      " of the budget are for pages; the rest: ", rest, "\n");
}

// Returns a line that says why the arena will not become as large as its budget, or "".
std::string Limited(const v1::GetStatsReply& stats) {
  if (stats.arena().limited_to() == 0) return "";
  const std::string path = stats.arena().path();
  return absl::StrCat("arena limited by ", path.substr(0, path.find_last_of('/')), ": ",
                      base::FormatBytes(stats.arena().limited_to()),
                      "; give that tmpfs room, or name a file on another one with --arena\n");
}

std::string Arena(const v1::GetStatsReply& stats) {
  if (!stats.arena().shared()) {
    return "arena  private: pages travel by Fetch and Put (prefixctl config and prefixd's log say "
           "why)\n";
  }
  return absl::StrCat("arena  shared: workers on this host read in place; ",
                      Plural(stats.arena().adopted_pages(), "page"),
                      " adopted from the prefixd before\n");
}

// Returns the line about memory that workers have pinned for GPUs, or "".
std::string DevicePins(const v1::GetStatsReply& stats) {
  const auto bytes = [&](const char* which) {
    return CounterValue(stats, absl::StrCat("arena.device_", which, "_bytes"));
  };
  if (bytes("pinned") == 0) return "";
  std::string text = absl::StrCat("gpus   ", base::FormatBytes(bytes("pinned")),
                                  " of the arena are pinned by workers");
  if (bytes("awaited") > 0) {
    absl::StrAppend(&text, "; ", base::FormatBytes(bytes("awaited")),
                    " of it were asked back, and count as used until they are unpinned");
  }
  if (bytes("kept") > 0) {
    absl::StrAppend(&text, "; ", base::FormatBytes(bytes("kept")),
                    " of it were not unpinned in time, and are beside the budget: prefixd's log "
                    "names the workers");
  }
  return text + "\n";
}

// Returns what is left of the cache after each kind of end.
std::string Survival(const v1::GetStatsReply& stats) {
  const bool shared = stats.arena().shared();
  const bool ssd = stats.ssd_budget_bytes() > 0;
  const std::string on_ssd =
      ssd ? absl::StrCat("what is on ssd too, all but ", base::FormatBytes(stats.dirty_bytes()))
          : "nothing";
  Table table({{"survives"}, {"stop"}, {"kill -9"}, {"reboot, power cut"}});
  table.AddRow({"pages in ram",
                shared ? "yes, in the arena's file" : (ssd ? "yes, saved to ssd" : "nothing"),
                shared ? "yes, in the arena's file" : on_ssd, on_ssd});
  if (ssd) table.AddRow({"pages on ssd", "yes", "yes", "yes"});
  table.AddRow({"pins, budgets", "no", "no", "no"});
  return table.Text();
}

// Returns what "delivered" counts. A worker that maps the arena is sent nothing.
const char* Delivered(const v1::GetStatsReply& stats) {
  const bool in_place = stats.arena().shared() && CounterValue(stats, "tokens.delivered") <
                                                      CounterValue(stats, "tokens.restorable");
  return in_place ? "copied to workers; the others were read in place" : "copied to workers";
}

std::string Tokens(const v1::GetStatsReply& stats) {
  const uint64_t requested = CounterValue(stats, "tokens.requested");
  Table table({{""}, {"", Align::kRight}, {"", Align::kRight}, {""}});
  table.AddRow({"requested", CountText(requested), "", "asked for by workers"});
  const auto row = [&](const char* name, const char* meaning) {
    const uint64_t tokens = CounterValue(stats, absl::StrCat("tokens.", name));
    table.AddRow({name, CountText(tokens), PercentText(tokens, requested), meaning});
  };
  row("matched", "known prefix");
  row("restorable", "with all their bytes");
  row("delivered", Delivered(stats));
  row("used", "not computed again");
  return "tokens since start\n" + table.Text(2);
}

// Returns the line about models whose caches are not shared, or "". A model counts once for each
// worker that serves it so.
std::string NotShared(const v1::GetStatsReply& stats) {
  const uint64_t models = CounterValue(stats, "spaces.refused");
  if (models == 0) return "";
  return absl::StrCat("not shared   ", Plural(models, "model"), ": see prefixctl sessions\n");
}

// Returns the table of the spaces, or that there are none.
std::string Spaces(const v1::GetStatsReply& stats) {
  if (stats.spaces().empty()) return "no spaces yet: no worker has opened one\n";
  return SpaceTable(stats.spaces(), 0);
}

}  // namespace

bool TellsSums(const v1::GetStatsReply& stats) { return stats.ram_budget_bytes() > 0; }

uint64_t CounterValue(const v1::GetStatsReply& stats, const std::string& name) {
  for (const v1::Count& counter : stats.counters()) {
    if (counter.name() == name) return counter.value();
  }
  return 0;
}

std::string StatusView(const StatusInput& input) {
  const v1::GetStatsReply& stats = input.stats;
  std::string text = absl::StrCat("prefixd ", PrintableText(stats.version()), " at ", input.address,
                                  ": ", input.health);
  if (!TellsSums(stats)) {
    return text +
           "\n\nbudgets, sessions and tokens of this prefixd are not told to a caller of one "
           "tenant; the tenant's spaces:\n\n" +
           Spaces(stats);
  }
  absl::StrAppend(&text, ", up ", UptimeText(stats.uptime_s()), "\n\n");
  text += Budgets(stats);
  text += Shares(stats);
  text += Arena(stats);
  text += DevicePins(stats);
  text += Limited(stats);
  text += RemoteLines(stats);
  absl::StrAppend(&text, "\n", Survival(stats));
  absl::StrAppend(&text, "\n", Plural(stats.sessions(), "session"), ", ",
                  Plural(stats.leases(), "lease"), " of ", base::FormatBytes(stats.leased_bytes()),
                  ", ", Plural(stats.reservations(), "reservation"), "\n", NotShared(stats), "\n");
  text += Tokens(stats);
  absl::StrAppend(&text, "saved ", Plural(CounterValue(stats, "tokens.used"), "token"),
                  " of prefill, ", SecondsText(stats.seconds_saved()), "\n\n");
  if (stats.spaces_hidden()) {
    return text + "spaces: shown on the admin socket only, which was not asked\n";
  }
  return text + Spaces(stats);
}

}  // namespace prefixd::cli
