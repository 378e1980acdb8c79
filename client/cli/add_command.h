// One subcommand of prefixctl, declared as all of them are.
#pragma once
#include <CLI/CLI.hpp>

#include "client/cli/options.h"

namespace prefixd::cli {

// `notes`: what `about` does not say, and examples; help shows them below the flags. Options and
// the texts must live until the command line is parsed.
CLI::App* AddCommand(CLI::App& app, Options* options, Command command, const char* name,
                     const char* about, const char* notes);

}  // namespace prefixd::cli
