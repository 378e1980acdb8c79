// Which metric shows which of the cache's named counters (block::Stats::counters).
//
// Pure data and functions.
#pragma once
#include <span>
#include <string_view>

namespace prefixd::daemon {

enum class Kind { kCounter, kGauge };
// When a metric is shown although nothing was counted yet, so that its rate is right from the
// start.
enum class Shown { kAlways, kWithSsd, kWithRemote, kOnceCounted };

struct CounterRule {
  // The whole name of a counter; or, with a star at its end, the start of many names, whose rest is
  // the value of `label`.
  std::string_view counter;
  const char* metric = nullptr;  // null: other code shows it
  Kind kind = Kind::kCounter;
  const char* help = nullptr;
  const char* label = nullptr;  // null: none
  const char* value = nullptr;  // of the label, where the whole name is given
  Shown shown = Shown::kAlways;
  double unit = 1;  // what one of the counter is of the metric's unit

  bool is_prefix() const { return counter.ends_with('*'); }
};

// In the order in which a scrape shows the metrics. Rules of one metric have one kind, help and
// label.
std::span<const CounterRule> CounterRules();

// Returns the rule of this counter, the one that says most of its name; null if there is none.
const CounterRule* RuleFor(std::string_view counter);

}  // namespace prefixd::daemon
