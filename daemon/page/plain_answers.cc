#include "daemon/page/plain_answers.h"

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "daemon/request_log.h"

namespace prefixd::daemon {
namespace {

constexpr double kPoorShare = 0.1;   // of the requested tokens: found, or evicted before
constexpr uint64_t kFewTokens = 64;  // asked for: say nothing of shares

std::string Number(double value, const char* unit) {
  char text[48];
  const bool whole = value >= 10 || std::abs(value - std::round(value)) < 0.05;
  std::snprintf(text, sizeof(text), whole ? "%.0f %s" : "%.1f %s", value, unit);
  return text;
}

PlainAnswer Hitting(const block::Stats& stats, const PagePoint& before) {
  constexpr char kQuestion[] = "Is it hitting?";
  const PagePoint now = PagePointOf(stats);
  if (now.requested == 0) return {kQuestion, "Nobody has asked for anything yet.", "note"};
  const uint64_t asked = now.requested - std::min(before.requested, now.requested);
  const uint64_t found = now.restorable() - std::min(before.restorable(), now.restorable());
  const std::string since_start =
      absl::StrCat(ShareWords(now.restorable(), now.requested), " since the start");
  if (asked < kFewTokens) {
    return {kQuestion, absl::StrCat("No request of late; ", since_start, "."), "note"};
  }
  const bool poor = static_cast<double>(found) < kPoorShare * static_cast<double>(asked);
  return {kQuestion,
          absl::StrCat(poor ? "Hardly: " : "Yes: ", ShareWords(found, asked), " of ",
                       CountOf(asked, "token"), " in the last ",
                       TimeWords(1000 * (now.uptime_s - before.uptime_s)), ", ", since_start,
                       poor ? ". Requests says why." : "."),
          poor ? "warning" : "good"};
}

PlainAnswer Evictions(const block::Stats& stats, const PagePoint& before) {
  constexpr char kQuestion[] = "Are evictions building up?";
  const PagePoint now = PagePointOf(stats);
  uint64_t used = 0;
  for (const block::NamedCount& part : stats.ram_parts) used += part.value;
  if (now.evicted == 0) {
    return {kQuestion,
            absl::StrCat("No: RAM has evicted nothing, and is ",
                         ShareWords(used, stats.ram_budget_bytes), " full."),
            "good"};
  }
  const uint64_t lost = CounterOf(stats, "tokens.given_up");
  if (now.requested >= kFewTokens &&
      static_cast<double>(lost) > kPoorShare * static_cast<double>(now.requested)) {
    return {kQuestion,
            absl::StrCat("Yes, and they cost hits: ", ShareWords(lost, now.requested),
                         " of the tokens asked for were here once. More RAM or SSD would keep "
                         "them."),
            "warning"};
  }
  const uint64_t evicted = now.evicted - std::min(before.evicted, now.evicted);
  if (evicted == 0) return {kQuestion, "Not now: RAM has evicted nothing of late.", "good"};
  const double idle = MedianMs(stats.ages.idle_at_eviction), gap = MedianMs(stats.ages.reuse_gap);
  const std::string rate = absl::StrCat(base::FormatBytes(evicted), " in the last ",
                                        TimeWords(1000 * (now.uptime_s - before.uptime_s)));
  if (idle >= 0 && gap >= 0 && idle < gap) {
    return {kQuestion,
            absl::StrCat("They may: ", rate, "; half of the blocks leave RAM within ",
                         TimeWords(idle), " of their last use, and come back after ",
                         TimeWords(gap), stats.ssd_budget_bytes > 0 ? ", then from SSD." : "."),
            "warning"};
  }
  return {kQuestion,
          absl::StrCat("They do no harm: ", rate,
                       idle < 0 ? "" : ", half of it unused for more than " + TimeWords(idle), "."),
          "good"};
}

PlainAnswer ClearIsSafe(const block::Stats& stats) {
  constexpr char kQuestion[] = "Is a clear safe?";
  if (CounterOf(stats, "ssd.border_waits") > 0) {
    return {kQuestion,
            "One is still waiting for the disk: a restart before may bring back what it cleared.",
            "warning"};
  }
  uint64_t tokens = 0;
  for (const block::SpaceSummary& space : stats.spaces) tokens += space.stored_tokens;
  const std::string cost =
      tokens == 0 ? "There is nothing to clear."
                  : absl::StrCat(CountOf(tokens, "stored token"), " would be computed again.");
  if (stats.leases == 0) {
    return {kQuestion, absl::StrCat("Yes: nobody is reading. ", cost), "good"};
  }
  return {kQuestion,
          absl::StrCat(
              "Yes: ", CountOf(stats.leases, "lease"), stats.leases == 1 ? " reads " : " read ",
              base::FormatBytes(stats.leased_bytes), ", and may read them to the end. ", cost),
          "note"};
}

PlainAnswer Survives(const block::Stats& stats, const cache::ArenaPlace& arena) {
  constexpr char kQuestion[] = "What survives?";
  const bool ssd = stats.ssd_budget_bytes > 0;
  const std::string unsaved = base::FormatBytes(stats.dirty_bytes);
  if (!ssd && !arena.shared) {
    return {kQuestion, "Nothing survives a stop: there is no SSD tier and no shared arena.",
            "warning"};
  }
  if (!ssd) {
    return {kQuestion, "A stop and a kill lose nothing; a reboot loses all: there is no SSD tier.",
            "note"};
  }
  const char* const kill = arena.shared ? "A stop and a kill lose nothing" : "A stop loses nothing";
  return {
      kQuestion,
      absl::StrCat(kill, stats.dirty_bytes == 0 ? "; neither does a power cut: all is on SSD."
                                                : absl::StrCat("; a power cut now loses ", unsaved,
                                                               " that are in RAM only.")),
      "good"};
}

}  // namespace

double MedianMs(const block::AgeHistogram& ages) {
  if (ages.count == 0) return -1;
  uint64_t passed = 0;
  for (size_t i = 0; i < ages.buckets.size(); ++i) {
    if (2 * (passed + ages.buckets[i]) < ages.count) {
      passed += ages.buckets[i];
      continue;
    }
    const double inside = (static_cast<double>(ages.count) / 2 - static_cast<double>(passed)) /
                          static_cast<double>(std::max<uint64_t>(1, ages.buckets[i]));
    return std::ldexp(1 + inside, static_cast<int>(i));
  }
  return -1;
}

std::string CountWords(uint64_t count) {
  std::string digits = std::to_string(count);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string CountOf(uint64_t count, const char* what) {
  return absl::StrCat(CountWords(count), " ", what, count == 1 ? "" : "s");
}

std::string TimeWords(double ms) {
  if (ms < 1) return absl::StrCat(std::lround(1000 * ms), " us");
  if (ms < 1000) return Number(ms, "ms");
  if (ms < 120'000) return Number(ms / 1000, "s");
  if (ms < 2 * 3'600'000.0) return Number(ms / 60'000, "min");
  if (ms < 48 * 3'600'000.0) return Number(ms / 3'600'000, "h");
  return Number(ms / 86'400'000, "days");
}

std::string ShareWords(uint64_t part, uint64_t whole) {
  if (part == 0 || whole == 0) return "0 %";
  return Number(100 * static_cast<double>(part) / static_cast<double>(whole), "%");
}

std::vector<std::string> Troubles(const block::Stats& stats, const cache::ArenaPlace& arena) {
  std::vector<std::string> found;
  const auto note = [&](const char* counter, const char* text) {
    if (CounterOf(stats, counter) > 0) found.emplace_back(text);
  };
  note("ssd.store_missing",
       "The SSD directory does not hold the store that it held: its disk is not mounted.");
  note("ssd.failing", "Writes to the SSD fail: the disk is full or broken.");
  note("ssd.closed", "The SSD tier is closed: its disk takes nothing now, and is tried again.");
  note("spaces.refused", "Workers serve models without sharing their caches: Sessions says why.");
  if (arena.limited_to.has_value()) {
    found.push_back(absl::StrCat("The arena is limited to ", base::FormatBytes(*arena.limited_to),
                                 " by ", std::filesystem::path(arena.path).parent_path().string(),
                                 ": give that tmpfs room."));
  }
  if (arena.held_by_another) {
    found.emplace_back("Another process holds the arena: pages are copied to workers meanwhile.");
  }
  for (const block::RemoteServer& server : stats.remote.servers) {
    if (!server.open) continue;
    found.push_back(absl::StrCat("The shared store's server ", server.address,
                                 " is given up for now: ", server.why));
    if (found.size() >= 12) break;
  }
  return found;
}

std::vector<PlainAnswer> PlainAnswers(const block::Stats& stats, const cache::ArenaPlace& arena,
                                      const PagePoint& before) {
  return {Hitting(stats, before), Evictions(stats, before), ClearIsSafe(stats),
          Survives(stats, arena)};
}

}  // namespace prefixd::daemon
