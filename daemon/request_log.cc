#include "daemon/request_log.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "spdlog/fmt/fmt.h"

#include "base/size.h"
#include "block/names.h"

namespace prefixd::daemon {
namespace {

std::string Shortened(const block::MatchAnswer& match) {
  std::string text;
  for (const block::Shortening& shortening : match.shortened_by) {
    text +=
        fmt::format(" shortened={}:{}", block::NameOf(shortening.reason), shortening.tokens_lost);
  }
  return text;
}

uint64_t Entries(const std::vector<block::SpaceSummary>& spaces) {
  uint64_t ends = 0;
  for (const block::SpaceSummary& space : spaces) ends += space.ends;
  return ends;
}

std::string Remote(const block::MatchAnswer& match) {
  if (match.remote_bytes == 0) return "";
  return fmt::format(" remote={}", base::FormatBytes(match.remote_bytes));
}

}  // namespace

uint64_t CounterOf(const block::Stats& stats, const std::string& name) {
  for (const block::NamedCount& count : stats.counters) {
    if (count.name == name) return count.value;
  }
  return 0;
}

std::string AcquireLine(const cache::Request& request, const cache::Acquired& acquired,
                        uint64_t time_us) {
  const block::MatchAnswer& match = acquired.match;
  const std::string who =
      fmt::format("request_id={} space={:x} prompt={}", absl::CHexEscape(acquired.request_id),
                  request.space.value, request.tokens.size());
  const std::string what =
      fmt::format("matched={} cached={} ended_by={}{}", match.matched_tokens,
                  match.restorable_tokens, block::NameOf(match.ended_by), Shortened(match));
  if (match.restorable_tokens == 0)
    return fmt::format("acquire MISS {} {} time={}us", who, what, time_us);
  return fmt::format("acquire HIT kind={} {} {} pages={} ram={} ssd={}{} time={}us",
                     absl::AsciiStrToUpper(block::NameOf(match.kind)), who, what,
                     acquired.pages.size() + acquired.table.offsets.size(),
                     base::FormatBytes(match.ram_bytes), base::FormatBytes(match.ssd_bytes),
                     Remote(match), time_us);
}

uint64_t OwnMicros(const cache::Request& request, const cache::Acquired& acquired,
                   uint64_t call_us) {
  return request.remote_us + call_us - std::min(call_us, acquired.times.wait_us);
}

std::string SlowLine(const cache::Request& request, const cache::Acquired& acquired,
                     uint64_t time_us) {
  const cache::PhaseTimes& times = acquired.times;
  return fmt::format("slow: {} waited={}us remote={}us match={}us room={}us",
                     AcquireLine(request, acquired, time_us), times.wait_us, request.remote_us,
                     times.match_us, times.room_us);
}

std::string CommitLine(const cache::CommitRequest& request, const block::CommitAnswer& answer,
                       const cache::Cache::Holdings& held, uint64_t time_us) {
  return fmt::format("commit tokens={} stored={} duplicate={} entries={} ram={} time={}us",
                     request.tokens, answer.stored_tokens, answer.duplicate_tokens, held.entries,
                     base::FormatBytes(held.ram_payload_bytes), time_us);
}

std::string StatsLine(const block::Stats& stats) {
  uint64_t ram_used = 0;
  for (const block::NamedCount& part : stats.ram_parts) ram_used += part.value;
  return fmt::format(
      "stats uptime={:.0f}s sessions={} leases={} spaces={} entries={} ram={}/{} ssd={}/{} "
      "dirty={} adopted={} requested={} "
      "matched={} used={} seconds_saved={:.1f}",
      stats.uptime_s, stats.sessions, stats.leases, stats.spaces.size(), Entries(stats.spaces),
      base::FormatBytes(ram_used), base::FormatBytes(stats.ram_budget_bytes),
      base::FormatBytes(stats.ssd_file_bytes), base::FormatBytes(stats.ssd_budget_bytes),
      base::FormatBytes(stats.dirty_bytes), CounterOf(stats, kAdoptedPages),
      CounterOf(stats, "tokens.requested"), CounterOf(stats, "tokens.matched"),
      CounterOf(stats, "tokens.used"), stats.seconds_saved);
}

}  // namespace prefixd::daemon
