// The command line of prefixctl plan.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "client/cli/options.h"

namespace prefixd::cli {

// Flag values as CLI11 reads them, not yet checked.
struct PlanTexts {
  std::string format = "auto";
  std::string bytes_per_token;
  std::vector<std::string> ram, ssd;
  std::string write_share = "30%";
};

void DeclarePlan(CLI::App& app, Options* options, PlanTexts* texts);
// Checks `texts` and fills options->plan. Does nothing for other commands. InvalidArgument names
// the flag.
absl::Status ReadPlan(const PlanTexts& texts, Options* options);

}  // namespace prefixd::cli
