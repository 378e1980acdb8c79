#include "completion/completion.h"
#include "completion/script.h"

namespace prefixd::completion {
namespace {

std::string FlagLine(const std::string& begin, const Flag& flag) {
  std::string out = begin;
  for (const std::string& name : flag.names) {
    out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  switch (flag.kind) {
    case ValueKind::kNone:
      break;
    case ValueKind::kText:
      out += " -x";
      break;
    case ValueKind::kPath:
      out += " -r -F";
      break;
    case ValueKind::kFolder:
      out += " -x -a '(__fish_complete_directories)'";
      break;
    case ValueKind::kChoice:
      out += " -x -a " + Quoted(Joined(flag.choices, " "), /*fish=*/true);
      break;
  }
  return out + " -d " + Quoted(flag.about, /*fish=*/true) + "\n";
}

}  // namespace

std::string FishScript(const CommandLine& program) {
  std::string out = "# fish completion for " + program.name + ", made by `" + program.name +
                    " --completion fish`\n";
  const std::string begin = "complete -c " + program.name;
  out += begin + " -f\n";
  const std::string no_command = program.commands.empty() ? "" : " -n __fish_use_subcommand";
  for (const Flag& flag : program.flags) out += FlagLine(begin + no_command, flag);
  for (const CommandLine& command : program.commands) {
    out += begin + " -n __fish_use_subcommand -a " + command.name + " -d " +
           Quoted(command.about, /*fish=*/true) + "\n";
    const std::string within = begin + " -n '__fish_seen_subcommand_from " + command.name + "'";
    for (const Flag& flag : command.flags) out += FlagLine(within, flag);
  }
  return out;
}

}  // namespace prefixd::completion
