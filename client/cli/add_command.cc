#include "client/cli/add_command.h"

#include "absl/strings/str_cat.h"

namespace prefixd::cli {

CLI::App* AddCommand(CLI::App& app, Options* options, Command command, const char* name,
                     const char* about, const char* notes) {
  CLI::App* sub = app.add_subcommand(name, about);
  sub->footer(absl::StrCat(
      notes, "\nFlags for every command (--server, --json, --timeout): prefixctl --help"));
  sub->parse_complete_callback([options, command] { options->command = command; });
  return sub;
}

}  // namespace prefixd::cli
