#include "daemon/metrics/space_series.h"

#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "base/utf8.h"
#include "daemon/request_log.h"

namespace prefixd::daemon {
namespace {

constexpr size_t kLabelBytes = 8;
constexpr size_t kModelBytes = 128;
constexpr char kOther[] = "other";

// Calls `take` with the same count of each.
template <typename Take>
void ForEachCount(block::SpaceTokens* to, const block::SpaceTokens& a, const block::SpaceTokens& b,
                  Take take) {
  take(&to->requested, a.requested, b.requested);
  take(&to->matched, a.matched, b.matched);
  take(&to->restorable.ram, a.restorable.ram, b.restorable.ram);
  take(&to->restorable.ssd, a.restorable.ssd, b.restorable.ssd);
  take(&to->restorable.remote, a.restorable.remote, b.restorable.remote);
  take(&to->used.ram, a.used.ram, b.used.ram);
  take(&to->used.ssd, a.used.ssd, b.used.ssd);
  take(&to->used.remote, a.used.remote, b.used.remote);
}

block::SpaceTokens TotalsOf(const block::Stats& stats) {
  const auto tiers = [&](const std::string& name) {
    return block::TierTokens{.ram = CounterOf(stats, name + ".ram"),
                             .ssd = CounterOf(stats, name + ".ssd"),
                             .remote = CounterOf(stats, name + ".remote")};
  };
  return {.requested = CounterOf(stats, "tokens.requested"),
          .matched = CounterOf(stats, "tokens.matched"),
          .restorable = tiers("tokens.restorable"),
          .used = tiers("tokens.used")};
}

void AddTiers(const char* name, const char* help, const std::string& space,
              const block::TierTokens& tokens, Families* families) {
  const std::pair<const char*, uint64_t> tiers[] = {
      {"ram", tokens.ram}, {"ssd", tokens.ssd}, {"remote", tokens.remote}};
  for (const auto& [tier, count] : tiers) {
    families->Counter(name, help, static_cast<double>(count), {{"space", space}, {"tier", tier}});
  }
}

void AddTokens(const std::string& space, const block::SpaceTokens& tokens, Families* families) {
  families->Counter("prefixd_tokens_requested_total", "Tokens of the prompts that were looked up.",
                    static_cast<double>(tokens.requested), {{"space", space}});
  families->Counter("prefixd_tokens_matched_total",
                    "Of the requested tokens, those whose prefix is known.",
                    static_cast<double>(tokens.matched), {{"space", space}});
  AddTiers("prefixd_tokens_restorable_total",
           "Of the matched tokens, those that a lease gave, by where their pages were.", space,
           tokens.restorable, families);
  AddTiers("prefixd_tokens_used_total",
           "Of the restorable tokens, those that workers used, by where their pages were.", space,
           tokens.used, families);
}

}  // namespace

std::string SpaceLabel(const block::SpaceId& id) {
  return base::ToHex(std::span(id).first(kLabelBytes));
}

std::set<block::SpaceId> SpaceSeries::Choose(const block::Stats& stats) const {
  std::vector<std::pair<double, block::SpaceId>> by_worth;
  for (const block::SpaceSummary& space : stats.spaces) {
    const double more = series_.contains(space.id) ? 1.25 : 1;
    by_worth.emplace_back(-more * static_cast<double>(space.tokens.requested), space.id);
  }
  const size_t count = std::min(most_, by_worth.size());
  std::partial_sort(by_worth.begin(), by_worth.begin() + static_cast<long>(count), by_worth.end());
  std::set<block::SpaceId> chosen;
  for (size_t i = 0; i < count; ++i) chosen.insert(by_worth[i].second);
  return chosen;
}

// A space that was forgotten and came again counts from 0 again.
void SpaceSeries::Advance(const block::SpaceSummary& space, Series* series) {
  block::SpaceTokens& seen = seen_[space.id];
  if (series != nullptr) {
    block::SpaceTokens more;
    ForEachCount(&more, space.tokens, seen, [](uint64_t* to, uint64_t now, uint64_t before) {
      *to = now < before ? now : now - before;
    });
    const auto sum = [](uint64_t* to, uint64_t a, uint64_t b) { *to = a + b; };
    ForEachCount(&series->tokens, series->tokens, more, sum);
    ForEachCount(&given_, given_, more, sum);
  }
  seen = space.tokens;
}

void SpaceSeries::Update(const block::Stats& stats) {
  const std::set<block::SpaceId> chosen = Choose(stats);
  std::erase_if(series_, [&](const auto& entry) { return !chosen.contains(entry.first); });
  std::map<block::SpaceId, block::SpaceTokens> still;
  other_held_ = {};
  for (const block::SpaceSummary& space : stats.spaces) {
    Series* const series = chosen.contains(space.id) ? &series_[space.id] : nullptr;
    Advance(space, series);
    still.insert(*seen_.find(space.id));
    Held held{.spaces = 1,
              .blocks = space.blocks,
              .stored_tokens = space.stored_tokens,
              .ram_bytes = space.ram_extent_bytes,
              .ssd_bytes = space.ssd_page_bytes,
              .dirty_bytes = space.dirty_bytes};
    if (series != nullptr) {
      series->label = SpaceLabel(space.id);
      series->model = base::Utf8Prefix(space.identity.model, kModelBytes);
      series->tenant = base::Utf8Prefix(space.identity.tenant, kModelBytes);
      series->block_tokens = space.identity.block_tokens;
      series->held = held;
      continue;
    }
    other_held_.spaces += 1;
    other_held_.blocks += held.blocks;
    other_held_.stored_tokens += held.stored_tokens;
    other_held_.ram_bytes += held.ram_bytes;
    other_held_.ssd_bytes += held.ssd_bytes;
    other_held_.dirty_bytes += held.dirty_bytes;
  }
  seen_ = std::move(still);  // spaces that are gone are forgotten here too
  block::SpaceTokens rest;
  ForEachCount(&rest, TotalsOf(stats), given_, [](uint64_t* to, uint64_t all, uint64_t given) {
    *to = all - std::min(all, given);
  });
  ForEachCount(&other_, other_, rest,
               [](uint64_t* to, uint64_t a, uint64_t b) { *to = std::max(a, b); });
}

void SpaceSeries::AddTo(Families* families) const {
  const auto add = [families](const std::string& label, const block::SpaceTokens& tokens,
                              const Held& held) {
    AddTokens(label, tokens, families);
    const std::tuple<const char*, const char*, uint64_t> gauges[] = {
        {"prefixd_space_blocks", "Blocks of the space with pages in some tier.", held.blocks},
        {"prefixd_space_stored_tokens", "Tokens that the space has stored, each block once.",
         held.stored_tokens},
        {"prefixd_space_ram_bytes", "Bytes of the arena that the space takes.", held.ram_bytes},
        {"prefixd_space_ssd_bytes", "Bytes of pages that the space has on SSD.", held.ssd_bytes},
        {"prefixd_space_dirty_bytes", "Bytes of the space that are in RAM only.",
         held.dirty_bytes}};
    for (const auto& [name, help, value] : gauges)
      families->Gauge(name, help, static_cast<double>(value), {{"space", label}});
  };
  uint64_t spaces = other_held_.spaces;
  for (const auto& [id, series] : series_) {
    add(series.label, series.tokens, series.held);
    families->Gauge("prefixd_space_info", "1; what a space's label stands for.", 1,
                    {{"space", series.label},
                     {"model", series.model},
                     {"tenant", series.tenant},
                     {"block_tokens", std::to_string(series.block_tokens)}});
    ++spaces;
  }
  add(kOther, other_, other_held_);
  families->Gauge("prefixd_spaces", "Spaces that are known.", static_cast<double>(spaces));
}

}  // namespace prefixd::daemon
