// The command line of prefixctl token.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/status.h"

#include "client/cli/options.h"

namespace prefixd::cli {

// Flag values as CLI11 reads them, not yet checked.
struct TokenTexts {
  std::string lease_bytes, bytes_in_flight;
};

void DeclareToken(CLI::App& app, Options* options, TokenTexts* texts);
// Checks options->token and fills it from `texts`. Does nothing for other commands. InvalidArgument
// names the flag.
absl::Status ReadToken(const TokenTexts& texts, Options* options);

}  // namespace prefixd::cli
