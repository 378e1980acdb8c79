// What prefixctl top shows: from what is known of a daemon and the size of the screen to lines.
//
// Pure functions. No line is wider than the screen, and there are no more than fit. No colours.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "client/cli/top/history.h"
#include "client/cli/top/sample.h"
#include "client/cli/top/top_request.h"

namespace prefixd::cli {

SpaceOrder NextOrder(SpaceOrder order);

struct TopView {
  std::string address;
  double interval_s = 1;
  bool utf8 = false;  // the terminal shows block elements
  bool keys = true;   // the last line says which keys there are
  std::optional<Sample> latest;
  History history;
  std::string failure;  // why the daemon does not answer now; empty = it does
  double failed_s = 0;  // for how long
  bool paused = false;
  SpaceOrder order = SpaceOrder::kAsked;
  std::string chosen;   // a space id, or empty: the first one
  std::string drilled;  // a space id: show it alone
};

struct TopSize {
  size_t columns = 80;
  size_t rows = 24;  // 0 = as many as there is to show
};

struct TopLine {
  enum class Look { kPlain, kBold, kReverse };
  std::string text;
  Look look = Look::kPlain;
};

std::vector<TopLine> RenderTop(const TopView& view, const TopSize& size);

// Returns the spaces as the table has them, from the top.
std::vector<v1::SpaceStats> SortedSpaces(const TopView& view);

}  // namespace prefixd::cli
