// Declares one subcommand of prefixctl.
#pragma once
#include <CLI/CLI.hpp>

#include "client/cli/options.h"

namespace prefixd::cli {

// Adds the subcommand `name` to `app`. Help shows `about` as its summary, and `notes` (details and
// examples) below the flags. `options` and the texts must live until the command line is parsed.
CLI::App* AddCommand(CLI::App& app, Options* options, Command command, const char* name,
                     const char* about, const char* notes);

}  // namespace prefixd::cli
