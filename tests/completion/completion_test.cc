#include "completion/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace prefixd::completion {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A program with what prefixd's own have: groups, hidden options, choices, flags for all commands.
class CompletionTest : public ::testing::Test {
 protected:
  CompletionTest() {
    app_.fallthrough();
    app_.add_option("--token-file", text_, "where it is; more of it")->type_name("PATH");
    app_.add_option("--secret", text_, "nobody sees it")->group("");
    CLI::App* match = app_.add_subcommand("match", "what's cached: of a prompt");
    CLI::Option_group* which = match->add_option_group("Prompt", "one of these");
    which->add_option("--text", text_, "it's [text]")->type_name("TEXT");
    match->add_option("--speed", text_, "how")->check(CLI::IsMember({"fast", "precise"}));
    match->add_option("--direct", text_, "how")->type_name("on|off");
    match->add_option("--folder", text_, "where")->check(CLI::ExistingDirectory);
    match->add_flag("-y,--yes", yes_, "do not ask");
    match->add_option("REQUEST", text_, "has no dashes");
    app_.add_subcommand("old", "hidden")->group("");
    AddTo(app_);
  }

  std::string Print(const std::string& shell) {
    try {
      app_.parse("--completion " + shell);
    } catch (const CLI::ParseError& error) {
      std::ostringstream out, err;
      EXPECT_EQ(app_.exit(error, out, err), 0) << err.str();
      return out.str();
    }
    return "";
  }

  CLI::App app_{"A program. It does things.", "a-program"};
  std::string text_;
  bool yes_ = false;
};

TEST_F(CompletionTest, DescribesWhatHelpShowsAndNoHiddenOption) {
  const CommandLine program = Describe(app_);
  ASSERT_EQ(program.commands.size(), 1u);
  std::vector<std::string> names;
  for (const Flag& flag : program.commands[0].flags) {
    names.insert(names.end(), flag.names.begin(), flag.names.end());
  }
  EXPECT_THAT(names, ElementsAre("-h", "--help", "--speed", "--direct", "--folder", "-y", "--yes",
                                 "--text", "--token-file"));
  EXPECT_EQ(program.flags.size(), 2u);
}

TEST_F(CompletionTest, KnowsWhatAValueIs) {
  const CommandLine program = Describe(app_);
  const std::vector<Flag>& flags = program.commands[0].flags;
  EXPECT_EQ(flags[0].kind, ValueKind::kNone);
  EXPECT_THAT(flags[1].choices, ElementsAre("fast", "precise"));
  EXPECT_THAT(flags[2].choices, ElementsAre("on", "off"));
  EXPECT_EQ(flags[3].kind, ValueKind::kFolder);
  EXPECT_EQ(flags[5].kind, ValueKind::kText);
  EXPECT_EQ(flags[6].kind, ValueKind::kPath);
  EXPECT_EQ(flags[6].about, "where it is");
}

TEST_F(CompletionTest, PrintsAScriptForEachShell) {
  EXPECT_THAT(Print("bash"), HasSubstr("complete -F _a_program a-program"));
  EXPECT_THAT(Print("zsh"), HasSubstr("#compdef a-program"));
  EXPECT_THAT(Print("fish"), HasSubstr("complete -c a-program -n __fish_use_subcommand -a match"));
  for (const char* shell : {"bash", "zsh", "fish"}) {
    EXPECT_THAT(Print(shell), Not(HasSubstr("--secret"))) << shell;
    EXPECT_THAT(Print(shell), Not(HasSubstr("-l secret"))) << shell;
  }
}

TEST_F(CompletionTest, QuotesWhatAShellWouldRead) {
  EXPECT_THAT(Print("zsh"), HasSubstr(R"('--text=[it'\''s \[text\]]:TEXT:')"));
  EXPECT_THAT(Print("zsh"), HasSubstr(R"('match:what'\''s cached\: of a prompt')"));
  EXPECT_THAT(Print("fish"), HasSubstr(R"(-d 'it\'s [text]')"));
}

TEST_F(CompletionTest, RefusesAnotherShell) {
  EXPECT_THROW(app_.parse("--completion tcsh"), CLI::ValidationError);
}

}  // namespace
}  // namespace prefixd::completion
