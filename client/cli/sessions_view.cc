// Views of prefixctl sessions and leases: who holds what, one line each.
//
//   session           worker    slot    pid  state     age  leases  leased   reservations  staging
//   5f3a9c0e12d4b687  worker-0     0  41872  attached  4 s  1       13.5 MiB 0             64 MiB
//     has 3.8 GiB of the arena pinned for GPUs
//     not shared: gemma-3: group_size 48 does not divide head_dim 128
//   91be03d2775ac410  worker-1     1  41873  cut off   9 s  ...
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/size.h"
#include "client/cli/names.h"
#include "client/cli/table.h"
#include "client/cli/units.h"
#include "client/cli/views.h"

namespace prefixd::cli {
namespace {

using Align = Table::Align;

// Returns the lines below a session's line: what it has pinned for GPUs, and one for each model
// whose caches it does not share.
std::string LinesBelow(const v1::ListSessionsReply::Session& session) {
  std::string lines;
  if (session.device_pinned_bytes() > 0) {
    lines = absl::StrCat("  has ", base::FormatBytes(session.device_pinned_bytes()),
                         " of the arena pinned for GPUs\n");
  }
  for (const v1::ListSessionsReply::NotShared& note : session.not_shared()) {
    absl::StrAppend(&lines, "  not shared: ", PrintableText(note.model()), ": ",
                    PrintableText(note.reason()), "\n");
  }
  return lines;
}

std::string OrDash(bool known, uint64_t number) { return known ? absl::StrCat(number) : "-"; }

}  // namespace

std::string SessionsView(const v1::ListSessionsReply& reply) {
  if (reply.sessions().empty()) return "no sessions: no worker is attached\n";
  Table table({{"session"},
               {"worker"},
               {"slot", Align::kRight},
               {"pid", Align::kRight},
               {"state"},
               {"age", Align::kRight},
               {"leases", Align::kRight},
               {"leased", Align::kRight},
               {"reservations", Align::kRight},
               {"staging", Align::kRight}});
  bool cut_off = false;
  for (const v1::ListSessionsReply::Session& session : reply.sessions()) {
    cut_off = cut_off || !session.attached();
    table.AddRow({HexId(session.session()), session.worker(),
                  OrDash(session.maps_arena(), session.slot()),
                  OrDash(session.pid() != 0, session.pid()),
                  session.attached() ? "attached" : "cut off", UptimeText(session.age_s()),
                  CountText(session.leases()), base::FormatBytes(session.leased_bytes()),
                  CountText(session.reservations()), base::FormatBytes(session.staging_bytes())});
  }
  const std::vector<std::string> lines = absl::StrSplit(table.Text(), '\n');
  std::string text = lines[0] + "\n";
  for (int i = 0; i < reply.sessions_size(); ++i) {
    absl::StrAppend(&text, lines[static_cast<size_t>(i) + 1], "\n", LinesBelow(reply.sessions(i)));
  }
  if (!cut_off) return text;
  return text +
         "cut off: the connection is gone, but the process lives and may be reading: it keeps what "
         "it holds until it ends\n";
}

std::string LeasesView(const v1::ListLeasesReply& reply) {
  if (reply.leases().empty()) return "no leases: nobody is reading\n";
  Table table({{"lease"},
               {"session"},
               {"space"},
               {"tokens", Align::kRight},
               {"pages", Align::kRight},
               {"size", Align::kRight},
               {"age", Align::kRight}});
  for (const v1::ListLeasesReply::Lease& lease : reply.leases()) {
    table.AddRow({HexId(lease.lease()), HexId(lease.session()), ShortId(lease.space_id()),
                  CountText(lease.tokens()), CountText(lease.pages()),
                  base::FormatBytes(lease.bytes()), UptimeText(lease.age_s())});
  }
  return table.Text();
}

std::string EndSessionView(const v1::EndSessionReply& reply) {
  if (!reply.still_held()) return "ended: what it held is free\n";
  const std::string process =
      reply.pid() == 0 ? std::string("its process") : absl::StrCat("process ", reply.pid());
  return absl::StrCat("ended: ", process,
                      " lives and may be reading; what it holds is free when it ends\n");
}

}  // namespace prefixd::cli
