// The command line of prefixctl top.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/status.h"

#include "client/cli/options.h"

namespace prefixd::cli {

// Flag values as CLI11 reads them, not yet checked.
struct TopTexts {
  std::string interval = "1s";
  std::string order = "asked";
};

void DeclareTop(CLI::App& app, Options* options, TopTexts* texts);
// Checks `texts` and fills options->top. Does nothing for other commands. InvalidArgument names the
// flag.
absl::Status ReadTop(const TopTexts& texts, const Surroundings& surroundings, Options* options);

}  // namespace prefixd::cli
