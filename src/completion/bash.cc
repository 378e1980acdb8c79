#include "completion/completion.h"
#include "completion/script.h"

namespace prefixd::completion {
namespace {

// bash splits --ram=2GiB into three words.
constexpr const char* kCurrentWord =
    "  local current=${COMP_WORDS[COMP_CWORD]} before=$((COMP_CWORD - 1)) command= i\n"
    "  COMPREPLY=()\n"
    "  if [ \"$current\" = = ]; then\n"
    "    current=\n"
    "  elif [ \"${COMP_WORDS[before]}\" = = ]; then\n"
    "    before=$((before - 1))\n"
    "  fi\n";

// Returns a `case` line that completes the value of `flag` after the words of `command`.
std::string ValueCase(const std::string& command, const Flag& flag) {
  std::vector<std::string> patterns;
  for (const std::string& name : flag.names) patterns.push_back(command + name);
  std::string out = "    " + Joined(patterns, "|") + ") ";
  switch (flag.kind) {
    case ValueKind::kPath:
      out += "compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- \"$current\"); ";
      break;
    case ValueKind::kFolder:
      out += "compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- \"$current\"); ";
      break;
    case ValueKind::kChoice:
      out += "mapfile -t COMPREPLY < <(compgen -W " + Quoted(Joined(flag.choices, " ")) +
             " -- \"$current\"); ";
      break;
    case ValueKind::kText:
    case ValueKind::kNone:
      break;
  }
  return out + "return ;;\n";
}

std::string ValueCases(const std::string& command, const CommandLine& line) {
  std::string out;
  for (const Flag& flag : line.flags) {
    if (flag.kind != ValueKind::kNone) out += ValueCase(command, flag);
  }
  return out;
}

std::string FlagNames(const CommandLine& line) {
  std::vector<std::string> names;
  for (const Flag& flag : line.flags)
    names.insert(names.end(), flag.names.begin(), flag.names.end());
  return Joined(names, " ");
}

// Finds the command among the words before this one, past the values of flags.
std::string FindCommand(const CommandLine& program) {
  std::vector<std::string> with_value, names;
  for (const Flag& flag : program.flags) {
    if (flag.kind == ValueKind::kNone) continue;
    with_value.insert(with_value.end(), flag.names.begin(), flag.names.end());
  }
  for (const CommandLine& command : program.commands) names.push_back(command.name);
  return "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "    case ${COMP_WORDS[i]} in\n"
         "    " +
         Joined(with_value, "|") +
         ")\n"
         "      i=$((i + 1))\n"
         "      if [ \"${COMP_WORDS[i]}\" = = ]; then i=$((i + 1)); fi ;;\n"
         "    " +
         Joined(names, "|") +
         ") command=${COMP_WORDS[i]}; break ;;\n"
         "    esac\n"
         "  done\n";
}

std::string Words(const std::string& words) {
  return "mapfile -t COMPREPLY < <(compgen -W " + Quoted(words) + " -- \"$current\") ;;\n";
}

}  // namespace

std::string BashScript(const CommandLine& program) {
  const std::string function = FunctionName(program.name);
  std::string out = "# bash completion for " + program.name + ", made by `" + program.name +
                    " --completion bash`\n" + function + "() {\n" + kCurrentWord;
  if (!program.commands.empty()) out += FindCommand(program);
  out += "  case $command${COMP_WORDS[before]} in\n" + ValueCases("", program);
  for (const CommandLine& command : program.commands) out += ValueCases(command.name, command);
  out += "  esac\n  case $command in\n";
  for (const CommandLine& command : program.commands) {
    out += "    " + command.name + ") " + Words(FlagNames(command));
  }
  std::vector<std::string> first;
  for (const CommandLine& command : program.commands) first.push_back(command.name);
  if (first.empty()) {
    out += "    '') " + Words(FlagNames(program));
  } else {
    out += "    '')\n      case $current in\n        -*) " + Words(FlagNames(program)) +
           "        *) " + Words(Joined(first, " ")) + "      esac ;;\n";
  }
  return out + "  esac\n}\ncomplete -F " + function + " " + program.name + "\n";
}

}  // namespace prefixd::completion
