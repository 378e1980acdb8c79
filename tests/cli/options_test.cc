// What the command line accepts, where the daemon is looked for, and what help says.
#include "client/cli/options.h"

#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/version.h"

namespace prefixd::cli {
namespace {

using ::testing::HasSubstr;

struct Parsed {
  std::optional<int> exit_code;
  Options options;
  std::string out, err;
};

Parsed Parse(const std::vector<std::string>& arguments, Surroundings surroundings = {}) {
  if (!surroundings.exists) surroundings.exists = [](const std::string&) { return false; };
  Parsed parsed;
  std::ostringstream out, err;
  parsed.exit_code = ParseCommandLine(arguments, surroundings, &parsed.options, out, err);
  parsed.out = out.str();
  parsed.err = err.str();
  return parsed;
}

TEST(OptionsTest, GlobalFlagsStandBeforeOrAfterTheCommand) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"--json", "--timeout", "2m", "--server", "127.0.0.1:7", "stats"},
           {"stats", "--json", "--timeout", "2m", "--server", "127.0.0.1:7"}}) {
    const Parsed parsed = Parse(arguments);
    ASSERT_FALSE(parsed.exit_code.has_value()) << parsed.err;
    EXPECT_EQ(parsed.options.command, Command::kStats);
    EXPECT_TRUE(parsed.options.json);
    EXPECT_EQ(parsed.options.timeout, std::chrono::minutes(2));
    EXPECT_EQ(parsed.options.server, "127.0.0.1:7");
  }
}

TEST(OptionsTest, FlushWaitsLongerThanTheRest) {
  EXPECT_EQ(Parse({"status"}).options.timeout, std::chrono::seconds(5));
  EXPECT_EQ(Parse({"flush"}).options.timeout, std::chrono::seconds(60));
  EXPECT_EQ(Parse({"--timeout", "1s", "flush"}).options.timeout, std::chrono::seconds(1));
}

TEST(OptionsTest, TheDaemonIsLookedForWhereItListens) {
  const std::string system = "/run/prefixd/prefixd.sock";
  const std::string user = "/run/user/1000/prefixd/prefixd.sock";
  Surroundings at{.environment = {{"XDG_RUNTIME_DIR", "/run/user/1000"}},
                  .exists = [&](const std::string&) { return false; }};
  EXPECT_EQ(DefaultServer(at), "unix://" + system);  // the one to name when none is there
  at.exists = [&](const std::string& path) { return path == user; };
  EXPECT_EQ(DefaultServer(at), "unix://" + user);
  at.exists = [&](const std::string&) { return true; };
  EXPECT_EQ(DefaultServer(at), "unix://" + system);
  at.environment["PREFIXD_SERVER"] = "127.0.0.1:7777";
  EXPECT_EQ(DefaultServer(at), "127.0.0.1:7777");
  EXPECT_EQ(Parse({"--server", "/tmp/p.sock", "status"}, at).options.server, "unix:///tmp/p.sock");
}

// T5
TEST(OptionsTest, AdminIsAskedOnItsOwnSocketWhereTheUserMay) {
  Surroundings at{.environment = {}, .exists = [](const std::string&) { return true; }};
  EXPECT_EQ(Parse({"--server", "/tmp/p.sock", "status"}, at).options.admin, "unix:///tmp/p.sock");
  at.writable = [](const std::string& path) { return path == "/tmp/p.admin.sock"; };
  EXPECT_EQ(Parse({"--server", "/tmp/p.sock", "status"}, at).options.admin,
            "unix:///tmp/p.admin.sock");
  EXPECT_EQ(Parse({"--server", "unix:///tmp/p.sock", "status"}, at).options.admin,
            "unix:///tmp/p.admin.sock");
  EXPECT_EQ(Parse({"--server", "/tmp/q.sock", "status"}, at).options.admin, "unix:///tmp/q.sock");
  EXPECT_EQ(Parse({"--server", "127.0.0.1:7777", "status"}, at).options.admin, "127.0.0.1:7777");
  at.environment["PREFIXD_ADMIN"] = "/tmp/a.sock";
  EXPECT_EQ(Parse({"--server", "/tmp/p.sock", "status"}, at).options.admin, "unix:///tmp/a.sock");
  EXPECT_EQ(Parse({"--admin", "/tmp/b.sock", "status"}, at).options.admin, "unix:///tmp/b.sock");
}

// T5
TEST(OptionsTest, TokenFileAndSaltComeFromFlagOrVariable) {
  Surroundings at{.environment = {{"PREFIXD_TOKEN_FILE", "/t"}, {"PREFIXD_SALT", "alice"}},
                  .exists = {}};
  EXPECT_EQ(Parse({"status"}, at).options.token_file, "/t");
  EXPECT_EQ(Parse({"status"}, at).options.salt, "alice");
  const Parsed given = Parse({"--token-file", "/u", "--salt", "bob", "status"}, at);
  EXPECT_EQ(given.options.token_file, "/u");
  EXPECT_EQ(given.options.salt, "bob");
}

TEST(OptionsTest, WhatIsWrongIsRefusedWithTheReason) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{}, "say what to do"},
      {{"statu"}, "not expected: statu"},
      {{"status", "--explain", "3f"}, "--explain"},
      {{"match", "--tokens", "1"}, "--space is required"},
      {{"match", "--space", "3f"}, "[--tokens,--text,--file]"},
      {{"match", "--space", "3f", "--tokens", "1", "--text", "x"}, "[--tokens,--text,--file]"},
      {{"match", "--space", "3f", "--tokens", "1,-2"}, "--tokens"},
      {{"match", "--space", "3f", "--tokens", "4294967296"}, "--tokens"},
      {{"match", "--space", "3f", "--text", ""}, "the prompt is empty"},
      {{"match", "--space", "3f", "--file", "/nonexistent"}, "cannot read /nonexistent"},
      {{"match", "--space", "3F", "--tokens", "1"}, "\"3F\" is not a space id"},
      {{"sessions", "--end", "5F"}, "\"5F\" is not a session"},
      {{"clear"}, "[--space,--all]"},
      {{"clear", "--all", "--space", "3f"}, "[--space,--all]"},
      {{"--timeout", "5", "status"}, "is not a time like"},
      {{"--timeout", "-1s", "status"}, "is not a time like"},
  };
  for (const auto& [arguments, reason] : wrong) {
    const Parsed parsed = Parse(arguments);
    EXPECT_EQ(parsed.exit_code, std::optional<int>(kExitUsage)) << reason;
    EXPECT_THAT(parsed.err, HasSubstr(reason));
  }
}

TEST(OptionsTest, HelpHasExamplesAndExitCodes) {
  const Parsed version = Parse({"--version"});
  EXPECT_EQ(version.exit_code, std::optional<int>(kExitOk));
  EXPECT_EQ(version.out, std::string("prefixctl ") + kVersion + "\n");
  const Parsed help = Parse({"--help"});
  EXPECT_EQ(help.exit_code, std::optional<int>(kExitOk));
  EXPECT_THAT(help.out, HasSubstr("Examples:"));
  EXPECT_THAT(help.out, HasSubstr("3 prefixd does not answer"));
  EXPECT_THAT(help.out, HasSubstr("4 match found nothing"));
  for (const char* command :
       {"status", "stats", "spaces", "match", "clear", "sessions", "leases", "flush", "config"}) {
    EXPECT_THAT(help.out, HasSubstr(command));
    const Parsed one = Parse({command, "--help"});
    EXPECT_EQ(one.exit_code, std::optional<int>(kExitOk)) << command;
    EXPECT_THAT(one.out, HasSubstr(std::string("prefixctl ") + command));
    EXPECT_THAT(one.out, HasSubstr("Examples:")) << command;
  }
}

}  // namespace
}  // namespace prefixd::cli
