// What prefixctl plan says on the screen.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "client/cli/plan.h"
#include "client/cli/table.h"
#include "client/cli/units.h"

namespace prefixd::cli {
namespace {

std::string Percent(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f %%", 100 * share);
  return text;
}

std::string Percent(const sizing::Hits& hits) { return Percent(hits.Share(hits.tokens())); }

std::string SizesText(const sizing::PlanCell& cell) {
  std::string text = "--ram " + base::FormatBytes(cell.ram_bytes);
  if (cell.ssd_bytes > 0) absl::StrAppend(&text, " --ssd ", base::FormatBytes(cell.ssd_bytes));
  return text;
}

std::string TraceLines(const PlanInput& input) {
  const auto& [request, read, plan] = input;
  std::string text =
      absl::StrCat("trace        ", CountText(plan.requests), " requests, ",
                   CountText(plan.most.requested_tokens), " tokens asked for\n", "working set  ",
                   CountText(plan.working_set_tokens), " different tokens, ",
                   base::FormatBytes(plan.working_set_bytes), " at ",
                   CountText(request.plan.shape.bytes_per_token), " bytes a token\n",
                   "at most      ", Percent(plan.most), " can be hit, with room for everything\n");
  if (read.kind == sizing::LineKind::kText) {
    absl::StrAppend(&text, "text         a token is taken to be ", request.trace.bytes_per_token,
                    " bytes of text\n");
  }
  if (read.bad_lines > 0) {
    absl::StrAppend(&text, "left out     ", Plural(read.bad_lines, "line"), " of ",
                    CountText(read.lines), "; the first is line ", CountText(read.first_bad_line),
                    ": ", read.first_why, "\n");
  }
  if (read.cut) {
    absl::StrAppend(&text, "cut          the file goes on after line ", CountText(read.lines),
                    ": what was read fills the memory that a trace may take\n");
  }
  return text;
}

std::string Grid(const sizing::Plan& plan, const char* title,
                 const std::function<std::string(const sizing::PlanCell&)>& cell) {
  std::vector<Table::Column> columns = {{"--ram", Table::Align::kRight}};
  for (const uint64_t ssd : plan.ssd_bytes) {
    columns.push_back(
        {ssd == 0 ? "no SSD" : "--ssd " + base::FormatBytes(ssd), Table::Align::kRight});
  }
  Table table(std::move(columns));
  for (size_t ram = 0; ram < plan.ram_bytes.size(); ++ram) {
    std::vector<std::string> cells = {base::FormatBytes(plan.ram_bytes[ram])};
    for (size_t ssd = 0; ssd < plan.ssd_bytes.size(); ++ssd) {
      cells.push_back(cell(plan.cell(ram, ssd)));
    }
    table.AddRow(std::move(cells));
  }
  return absl::StrCat("\n", title, "\n", table.Text(2));
}

std::string ReachedLines(const sizing::Plan& plan) {
  std::string text = "\n";
  for (const sizing::Plan::Reached& reached : plan.reached) {
    char share[16];
    std::snprintf(share, sizeof(share), "%.0f %%", 100 * reached.share);
    absl::StrAppend(&text, share, " of what can be hit: ");
    if (!reached.ram_alone && !reached.with_ssd) {
      absl::StrAppend(&text, "none of these sizes\n");
      continue;
    }
    if (reached.ram_alone) absl::StrAppend(&text, SizesText(*reached.ram_alone), " alone");
    if (reached.ram_alone && reached.with_ssd) absl::StrAppend(&text, ", or ");
    if (reached.with_ssd) absl::StrAppend(&text, SizesText(*reached.with_ssd));
    absl::StrAppend(&text, "\n");
  }
  return text;
}

std::string DoublingLine(const sizing::Plan& plan) {
  const double before = plan.before.hits.Share(plan.before.hits.tokens());
  const double after = plan.after.hits.Share(plan.after.hits.tokens());
  char points[32];
  std::snprintf(points, sizeof(points), "%.1f", 100 * (after - before));
  return absl::StrCat("The next doubling, from ", SizesText(plan.before), " to ",
                      SizesText(plan.after), ", would give ", points,
                      " points more: ", Percent(after), " in place of ", Percent(before), ".\n");
}

}  // namespace

std::string PlanView(const PlanInput& input) {
  const auto& [request, read, plan] = input;
  std::string text = TraceLines(input);
  absl::StrAppend(&text, Grid(plan, "tokens that hit, of those asked for",
                              [](const sizing::PlanCell& cell) { return Percent(cell.hits); }));
  if (request.prefill_tokens_per_s > 0) {
    const double rate = request.prefill_tokens_per_s;
    absl::StrAppend(&text,
                    Grid(plan, "time of prefill saved", [rate](const sizing::PlanCell& cell) {
                      return SecondsText(static_cast<double>(cell.hits.tokens()) / rate);
                    }));
  }
  absl::StrAppend(&text, ReachedLines(plan), DoublingLine(plan));
  if (!request.svg.empty()) absl::StrAppend(&text, "plot: ", PrintableText(request.svg), "\n");
  return text;
}

}  // namespace prefixd::cli
