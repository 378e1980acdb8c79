#include <algorithm>

#include "completion/completion.h"

namespace prefixd::completion {
namespace {

constexpr size_t kLongestAbout = 100;  // characters; a list of choices is no manual

// Returns the first clause of a help text.
std::string FirstClause(std::string text) {
  for (const char* end : {"\n", "; ", " ("}) text = text.substr(0, text.find(end));
  if (text.size() <= kLongestAbout) return text;
  return text.substr(0, text.rfind(' ', kLongestAbout)) + " ...";
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + 1) {
    parts.push_back(text.substr(begin, end - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

// `type`: as --help shows it: "PATH", "on|off", "TEXT:DIR", "TEXT:{fast,precise}", "TEXT ...".
void ReadType(const std::string& type, Flag* flag) {
  flag->value = type.substr(0, type.find_first_of(": "));
  flag->kind = ValueKind::kText;
  const size_t open = type.find('{'), close = type.find('}');
  if (open != std::string::npos && close != std::string::npos && open < close) {
    flag->kind = ValueKind::kChoice;
    flag->choices = Split(type.substr(open + 1, close - open - 1), ',');
  } else if (flag->value.find('|') != std::string::npos) {
    flag->kind = ValueKind::kChoice;
    flag->choices = Split(flag->value, '|');
  } else if (type.ends_with(":DIR")) {
    flag->kind = ValueKind::kFolder;
  } else if (flag->value == "PATH" || type.ends_with(":FILE")) {
    flag->kind = ValueKind::kPath;
  }
  if (flag->kind == ValueKind::kChoice) flag->value = "VALUE";
}

Flag DescribeOption(const CLI::Option& option) {
  Flag flag;
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  flag.about = FirstClause(option.get_description());
  if (option.get_items_expected_max() > 0) ReadType(option.get_type_name(), &flag);
  return flag;
}

// Appends `flag` unless there is one of its names: a group of options has a --help too.
void Append(Flag flag, std::vector<Flag>* flags) {
  const bool known = std::any_of(flags->begin(), flags->end(),
                                 [&](const Flag& other) { return other.names == flag.names; });
  if (!known) flags->push_back(std::move(flag));
}

// Appends the options of `app` and of its groups, which CLI11 keeps as commands without a name.
void AppendFlags(const CLI::App& app, std::vector<Flag>* flags) {
  for (const CLI::Option* option : app.get_options()) {
    const bool has_name = !option->get_snames().empty() || !option->get_lnames().empty();
    if (has_name && !option->get_group().empty()) Append(DescribeOption(*option), flags);
  }
  for (const CLI::App* group : app.get_subcommands(nullptr)) {
    if (group->get_name().empty()) AppendFlags(*group, flags);
  }
}

}  // namespace

CommandLine Describe(const CLI::App& app) {
  CommandLine program{.name = app.get_name(), .about = FirstClause(app.get_description())};
  AppendFlags(app, &program.flags);
  for (const CLI::App* sub : app.get_subcommands(nullptr)) {
    if (sub->get_name().empty() || sub->get_group().empty()) continue;
    CommandLine command{.name = sub->get_name(), .about = FirstClause(sub->get_description())};
    AppendFlags(*sub, &command.flags);
    for (const Flag& flag : program.flags) {
      if (sub->get_fallthrough()) Append(flag, &command.flags);
    }
    program.commands.push_back(std::move(command));
  }
  return program;
}

void AddTo(CLI::App& app) {
  const auto print = [&app](const std::string& shell) {
    const CommandLine program = Describe(app);
    std::string script = shell == "bash"  ? BashScript(program)
                         : shell == "zsh" ? ZshScript(program)
                                          : FishScript(program);
    throw CLI::CallForVersion(std::move(script), 0);
  };
  app.add_option_function<std::string>("--completion", print, "print a script for this shell")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->group("");
}

}  // namespace prefixd::completion
