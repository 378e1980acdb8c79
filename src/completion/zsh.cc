#include "completion/completion.h"
#include "completion/script.h"

namespace prefixd::completion {
namespace {

// Returns `text` with a backslash before each character of `special`.
std::string Escaped(const std::string& text, const std::string& special) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || special.find(c) != std::string::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string ValueSpec(const Flag& flag) {
  const std::string value = ":" + flag.value + ":";
  switch (flag.kind) {
    case ValueKind::kNone:
      return "";
    case ValueKind::kText:
      return value;
    case ValueKind::kPath:
      return value + "_files";
    case ValueKind::kFolder:
      return value + "_files -/";
    case ValueKind::kChoice:
      return value + "(" + Joined(flag.choices, " ") + ")";
  }
  return "";
}

// Returns the words by which _arguments knows the flags, one a line.
std::string Specs(const CommandLine& line, const std::string& indent) {
  std::string out;
  for (const Flag& flag : line.flags) {
    for (const std::string& name : flag.names) {
      const bool equals = flag.kind != ValueKind::kNone && name.starts_with("--");
      const std::string others =
          flag.names.size() > 1 ? "(" + Joined(flag.names, " ") + ")" : std::string();
      out += " \\\n" + indent +
             Quoted(others + name + (equals ? "=" : "") + "[" + Escaped(flag.about, "[]") + "]" +
                    ValueSpec(flag));
    }
  }
  return out;
}

std::string Commands(const CommandLine& program) {
  std::string out = "  case $state in\n  command)\n    local -a commands=(\n";
  for (const CommandLine& command : program.commands) {
    out += "      " + Quoted(command.name + ":" + Escaped(command.about, ":")) + "\n";
  }
  out += "    )\n    _describe command commands ;;\n  rest)\n    case $words[1] in\n";
  for (const CommandLine& command : program.commands) {
    out += "    " + command.name + ")\n      _arguments" + Specs(command, "        ") + " ;;\n";
  }
  return out + "    esac ;;\n  esac\n";
}

}  // namespace

std::string ZshScript(const CommandLine& program) {
  const std::string function = FunctionName(program.name);
  std::string out = "#compdef " + program.name + "\n# made by `" + program.name +
                    " --completion zsh`\n" + function + "() {\n";
  if (program.commands.empty()) {
    out += "  _arguments" + Specs(program, "    ") + "\n";
  } else {
    out += "  local state\n  _arguments -C" + Specs(program, "    ") +
           " \\\n    '1:command:->command' \\\n    '*::argument:->rest'\n" + Commands(program);
  }
  // Read by `source` it registers itself; from a folder of $fpath it is the function's body.
  return out + "}\nif [ \"$funcstack[1]\" = _" + program.name + " ]; then\n  " + function +
         " \"$@\"\nelse\n  compdef " + function + " " + program.name + "\nfi\n";
}

}  // namespace prefixd::completion
