#include "client/cli/top/history.h"

#include <algorithm>
#include <cmath>

#include "client/cli/views.h"

namespace prefixd::cli {
namespace {

// Returns what was counted since `before`; a counter that fell began anew.
uint64_t Since(uint64_t before, uint64_t now) { return now < before ? now : now - before; }

TokenFlow Since(const TokenFlow& before, const TokenFlow& now) {
  return {.requested = Since(before.requested, now.requested),
          .matched = Since(before.matched, now.matched),
          .ram = Since(before.ram, now.ram),
          .ssd = Since(before.ssd, now.ssd),
          .far = Since(before.far, now.far),
          .used = Since(before.used, now.used)};
}

ByteFlow Since(const ByteFlow& before, const ByteFlow& now) {
  return {.ssd_new = Since(before.ssd_new, now.ssd_new),
          .ssd_rewritten = Since(before.ssd_rewritten, now.ssd_rewritten),
          .ssd_read = Since(before.ssd_read, now.ssd_read),
          .far_read = Since(before.far_read, now.far_read),
          .far_written = Since(before.far_written, now.far_written),
          .evicted = Since(before.evicted, now.evicted)};
}

std::vector<uint64_t> Since(const std::vector<uint64_t>& before, const std::vector<uint64_t>& now) {
  std::vector<uint64_t> counted = now;
  for (size_t i = 0; i < counted.size() && i < before.size(); ++i) {
    counted[i] = Since(before[i], now[i]);
  }
  return counted;
}

std::map<std::string, TokenFlow> Since(const std::map<std::string, TokenFlow>& before,
                                       const std::map<std::string, TokenFlow>& now) {
  std::map<std::string, TokenFlow> asked;
  for (const auto& [id, tokens] : now) {
    const auto known = before.find(id);
    const TokenFlow flow = known == before.end() ? tokens : Since(known->second, tokens);
    if (flow != TokenFlow()) asked.emplace(id, flow);
  }
  return asked;
}

Flow Since(const Flow& before, const Flow& now) {
  return {.tokens = Since(before.tokens, now.tokens),
          .bytes = Since(before.bytes, now.bytes),
          .requests = Since(before.requests, now.requests),
          .seconds_saved = now.seconds_saved - before.seconds_saved,
          .evictions = Since(before.evictions, now.evictions),
          .spaces = Since(before.spaces, now.spaces)};
}

std::map<std::string, TokenFlow> SpaceTotals(const v1::GetStatsReply& stats) {
  std::map<std::string, TokenFlow> totals;
  for (const v1::SpaceStats& space : stats.spaces()) {
    const v1::SpaceTokens& tokens = space.tokens();
    totals[space.space_id()] = {
        .requested = tokens.requested(),
        .matched = tokens.matched(),
        .ram = tokens.restorable().ram(),
        .ssd = tokens.restorable().ssd(),
        .far = tokens.restorable().remote(),
        .used = tokens.used().ram() + tokens.used().ssd() + tokens.used().remote()};
  }
  return totals;
}

}  // namespace

TokenFlow& TokenFlow::operator+=(const TokenFlow& other) {
  requested += other.requested;
  matched += other.matched;
  ram += other.ram;
  ssd += other.ssd;
  far += other.far;
  used += other.used;
  return *this;
}

ByteFlow& ByteFlow::operator+=(const ByteFlow& other) {
  ssd_new += other.ssd_new;
  ssd_rewritten += other.ssd_rewritten;
  ssd_read += other.ssd_read;
  far_read += other.far_read;
  far_written += other.far_written;
  evicted += other.evicted;
  return *this;
}

Flow& Flow::operator+=(const Flow& other) {
  seconds += other.seconds;
  tokens += other.tokens;
  bytes += other.bytes;
  requests += other.requests;
  seconds_saved += other.seconds_saved;
  evictions.resize(std::max(evictions.size(), other.evictions.size()));
  for (size_t i = 0; i < other.evictions.size(); ++i) evictions[i] += other.evictions[i];
  for (const auto& [id, flow] : other.spaces) spaces[id] += flow;
  restarted = restarted || other.restarted;
  return *this;
}

Flow TotalsOf(const v1::GetStatsReply& stats) {
  std::map<std::string, uint64_t> counters;
  for (const v1::Count& counter : stats.counters()) counters[counter.name()] = counter.value();
  Flow totals;
  totals.seconds = stats.uptime_s();
  totals.tokens = {.requested = counters["tokens.requested"],
                   .matched = counters["tokens.matched"],
                   .ram = counters["tokens.restorable.ram"],
                   .ssd = counters["tokens.restorable.ssd"],
                   .far = counters["tokens.restorable.remote"],
                   .used = counters["tokens.used"]};
  totals.bytes = {.ssd_new = counters["bytes.spilled"],
                  .ssd_rewritten = counters["bytes.rewritten"],
                  .ssd_read = counters["bytes.promoted"],
                  .far_read = counters["remote.bytes_loaded"],
                  .far_written = counters["remote.bytes_written"],
                  .evicted = counters["bytes.evicted"]};
  totals.requests = counters["rpc.acquire"];
  totals.seconds_saved = stats.seconds_saved();
  for (const v1::Ages& ages : stats.ages()) {
    if (ages.name() != "idle_at_eviction") continue;
    totals.evictions.assign(ages.buckets().begin(), ages.buckets().end());
  }
  totals.spaces = SpaceTotals(stats);
  return totals;
}

void History::Add(double at_s, const v1::GetStatsReply& stats) {
  Flow totals = TotalsOf(stats);
  if (any_) {
    // The epoch is another one after a start. An older daemon sends none: then its uptime tells.
    const bool restarted = stats.epoch() != epoch_ || totals.seconds < totals_.seconds;
    Flow flow = Since(restarted ? Flow() : totals_, totals);
    flow.seconds = std::max(0.0, at_s - at_s_);
    flow.restarted = restarted;
    points_.push_back(std::move(flow));
    if (points_.size() > kMostPoints) points_.pop_front();
  }
  any_ = true;
  at_s_ = at_s;
  epoch_ = stats.epoch();
  totals_ = std::move(totals);
}

Flow History::Last(double seconds) const {
  Flow sum;
  for (auto point = points_.rbegin(); point != points_.rend(); ++point) {
    if (point != points_.rbegin() && sum.seconds + point->seconds > seconds + 1e-9) break;
    sum += *point;
  }
  return sum;
}

double HitRate(const TokenFlow& tokens) {
  if (tokens.requested == 0) return -1;
  return std::min(1.0,
                  static_cast<double>(tokens.restorable()) / static_cast<double>(tokens.requested));
}

double MedianIdleMs(const std::vector<uint64_t>& evictions) {
  uint64_t all = 0;
  for (const uint64_t count : evictions) all += count;
  if (all == 0) return -1;
  uint64_t passed = 0;
  for (size_t i = 0; i < evictions.size(); ++i) {
    if (2 * (passed + evictions[i]) < all) {
      passed += evictions[i];
      continue;
    }
    const double inside = (static_cast<double>(all) / 2 - static_cast<double>(passed)) /
                          static_cast<double>(evictions[i]);
    return std::ldexp(1 + inside, static_cast<int>(i));
  }
  return -1;
}

}  // namespace prefixd::cli
