// Scripts by which bash, zsh and fish complete a program's command line. They are made from the
// program's own CLI11 options, so that they cannot know other ones.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace prefixd::completion {

enum class ValueKind { kNone, kText, kPath, kFolder, kChoice };

struct Flag {
  std::vector<std::string> names{};  // with dashes: "-h", "--help"
  std::string about{};               // one line
  ValueKind kind = ValueKind::kNone;
  std::string value{};                 // what stands for it in --help: "SIZE"
  std::vector<std::string> choices{};  // of kChoice
};

struct CommandLine {
  std::string name;  // of the program, or of one of its commands
  std::string about{};
  std::vector<Flag> flags{};  // those of the program, where they may follow a command, too
  std::vector<CommandLine> commands{};  // of a program only
};

// Describes what `app` accepts. Hidden options and commands are left out.
CommandLine Describe(const CLI::App& app);

std::string BashScript(const CommandLine& program);
std::string ZshScript(const CommandLine& program);
std::string FishScript(const CommandLine& program);

// Declares the hidden option --completion SHELL. Parsing it throws CLI::CallForVersion with the
// script, which app.exit() prints. `app` must have a name and outlive the option.
void AddTo(CLI::App& app);

}  // namespace prefixd::completion
