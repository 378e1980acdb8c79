// Views of prefixctl budget and prefixctl spaces --set.
#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "client/cli/names.h"
#include "client/cli/units.h"
#include "client/cli/views.h"

namespace prefixd::cli {
namespace {

std::string OrNone(uint64_t bytes) { return bytes == 0 ? "none" : base::FormatBytes(bytes); }

}  // namespace

std::string LimitsView(const v1::SetSpaceLimitsRequest& request,
                       const v1::SetSpaceLimitsReply& reply) {
  const v1::SpaceLimits& limits = request.limits();
  return absl::StrCat(
      "space ", ShortId(request.space_id()), ": ram floor ", OrNone(limits.ram_floor_bytes()),
      ", ram ceiling ", OrNone(limits.ram_ceiling_bytes()), ", ssd floor ",
      OrNone(limits.ssd_floor_bytes()), ", ssd ceiling ", OrNone(limits.ssd_ceiling_bytes()),
      ", ttl ",
      limits.ttl_ms() == 0 ? "none" : UptimeText(static_cast<double>(limits.ttl_ms()) * 1e-3),
      reply.remembered() ? "\n" : "; until the next start, there is no SSD tier to remember it\n");
}

std::string BudgetView(const v1::SetBudgetsReply& reply) {
  std::string text = absl::StrCat("ram  ", base::FormatBytes(reply.ram_used_bytes()), " of ",
                                  base::FormatBytes(reply.ram_budget_bytes()));
  if (reply.ram_over_bytes() > 0) {
    absl::StrAppend(&text, ", ", base::FormatBytes(reply.ram_over_bytes()),
                    " are given back as leases and pins end");
  }
  if (reply.awaited_bytes() > 0) {
    absl::StrAppend(&text, ", of these ", base::FormatBytes(reply.awaited_bytes()),
                    " as workers unpin them from GPUs");
  }
  if (reply.ssd_budget_bytes() == 0) return text + "\nssd  none\n";
  return absl::StrCat(text, "\nssd  ", base::FormatBytes(reply.ssd_file_bytes()), " of ",
                      base::FormatBytes(reply.ssd_budget_bytes()), "\n");
}

}  // namespace prefixd::cli
