#include "client/cli/top/top_options.h"

#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "client/cli/add_command.h"

namespace prefixd::cli {
namespace {

constexpr size_t kUsualColumns = 80, kMostColumns = 1000, kFewestColumns = 20;

const std::map<std::string, SpaceOrder>& Orders() {
  static const auto* const orders = new std::map<std::string, SpaceOrder>{
      {"asked", SpaceOrder::kAsked},   {"hit-rate", SpaceOrder::kHitRate},
      {"tokens", SpaceOrder::kTokens}, {"ram", SpaceOrder::kRam},
      {"ssd", SpaceOrder::kSsd},       {"model", SpaceOrder::kModel}};
  return *orders;
}

// Returns the width of the terminal as the shell tells it, or the usual one.
size_t ColumnsOf(const Surroundings& surroundings) {
  const auto found = surroundings.environment.find("COLUMNS");
  size_t columns = 0;
  if (found == surroundings.environment.end() || !absl::SimpleAtoi(found->second, &columns) ||
      columns < kFewestColumns || columns > kMostColumns) {
    return kUsualColumns;
  }
  return columns;
}

}  // namespace

void DeclareTop(CLI::App& app, Options* options, TopTexts* texts) {
  CLI::App* top = AddCommand(
      app, options, Command::kTop, "top",
      "watch prefixd: hit rate over time, tiers, disk, sessions, the spaces that are asked for",
      "Keys: q ends, p pauses, s sorts by the next column, the arrows choose a space, Enter shows\n"
      "it alone, Esc goes back. No colours. A prefixd that goes away is tried again.\n"
      "Examples:\n  prefixctl top\n  prefixctl top --once --width 120 > frame.txt");
  top->add_flag("--once", options->top.once,
                "print one frame to standard output, of two samples an interval apart");
  top->add_option("--interval", texts->interval, "how often prefixd is asked, at least 100ms")
      ->type_name("TIME")
      ->capture_default_str();
  top->add_option("--width", options->top.width, "columns of --once (default: $COLUMNS, else 80)")
      ->check(CLI::Range(kFewestColumns, kMostColumns))
      ->type_name("COLUMNS");
  std::vector<std::string> names;
  for (const auto& [name, unused] : Orders()) names.push_back(name);
  top->add_option("--sort", texts->order, "what the table of spaces is sorted by")
      ->check(CLI::IsMember(names))
      ->capture_default_str();
}

absl::Status ReadTop(const TopTexts& texts, const Surroundings& surroundings, Options* options) {
  if (options->command != Command::kTop) return absl::OkStatus();
  if (options->json) {
    return absl::InvalidArgumentError(
        "top: shows a screen, no JSON: prefixctl --json stats has the numbers");
  }
  absl::Duration interval;
  if (!absl::ParseDuration(texts.interval, &interval) || interval < absl::Milliseconds(100) ||
      interval > absl::Hours(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--interval: \"", texts.interval, "\" is not a time from 100ms to 1h"));
  }
  options->top.interval = absl::ToChronoMilliseconds(interval);
  options->top.order = Orders().at(texts.order);
  if (options->top.width == 0) options->top.width = ColumnsOf(surroundings);
  return absl::OkStatus();
}

}  // namespace prefixd::cli
