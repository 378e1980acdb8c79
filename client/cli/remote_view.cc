// The lines of prefixctl status about the store that hosts share:
//
//   remote  redis cluster, 3 of 3 servers, tls, sealed; 1.2 GiB read, 340.0 MiB written, 0 bad
//           found 12,345 tokens in 210 of 380 lookups, p99 1.4 ms; gone 3, late 2, not worth it 41
//   remote  OPEN: 10.99.0.3:6379 timed out, 4 s ago, next try in 1.6 s; served without it
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/size.h"
#include "client/cli/units.h"
#include "client/cli/views.h"

namespace prefixd::cli {
namespace {

// Bundles that were another's, or altered, whatever the reason.
uint64_t BadBundles(const v1::GetStatsReply& stats) {
  uint64_t bad = 0;
  for (const v1::Count& counter : stats.counters()) {
    if (counter.name().starts_with("remote.bad.")) bad += counter.value();
  }
  return bad;
}

std::string Servers(const v1::Remote& remote) {
  if (!remote.known()) return "no server has answered yet";
  const auto open =
      std::ranges::count_if(remote.servers(), [](const auto& server) { return server.open(); });
  return absl::StrCat(remote.cluster() ? "redis cluster" : "redis", ", ",
                      remote.servers_size() - static_cast<int>(open), " of ",
                      Plural(static_cast<uint64_t>(remote.servers_size()), "server"));
}

std::string FindP99(const v1::GetStatsReply& stats) {
  for (const v1::Latency& latency : stats.latencies()) {
    if (latency.name() == "remote.find") {
      return absl::StrCat(", p99 ", LatencyText(QuantileMicros(latency, 0.99)));
    }
  }
  return "";
}

}  // namespace

std::string RemoteLines(const v1::GetStatsReply& stats) {
  if (!stats.has_remote()) return "";
  const v1::Remote& remote = stats.remote();
  const auto count = [&stats](const char* name) {
    return CountText(CounterValue(stats, absl::StrCat("remote.", name)));
  };
  const auto bytes = [&stats](const char* name) {
    return base::FormatBytes(CounterValue(stats, absl::StrCat("remote.", name)));
  };
  std::string text = absl::StrCat("remote  ", Servers(remote), remote.tls() ? ", tls" : "",
                                  remote.sealed() ? ", sealed" : ", NOT SEALED", "; ",
                                  bytes("bytes_loaded"), " read, ", bytes("bytes_written"),
                                  " written, ", CountText(BadBundles(stats)), " bad\n");
  absl::StrAppend(&text, "        found ", count("tokens_found"), " tokens in ",
                  count("lookups_found"), " of ", count("lookups"), " lookups", FindP99(stats),
                  "; gone ", count("gone"), ", late ", count("late"), ", not worth it ",
                  count("not_worth_it"), "\n");
  for (const v1::Remote::Server& server : remote.servers()) {
    if (!server.open()) continue;
    absl::StrAppend(&text, "remote  OPEN: ", PrintableText(server.address()), " ",
                    PrintableText(server.why()), ", ", SecondsText(server.failed_s()),
                    " ago, next try in ", SecondsText(server.next_try_s()),
                    "; served without it\n");
  }
  for (const std::string& warning : remote.warnings()) {
    absl::StrAppend(&text, "remote  WARNING: ", PrintableText(warning), "\n");
  }
  return text;
}

}  // namespace prefixd::cli
