// prefixctl token: what it makes is what prefixd reads.
#include "client/cli/token.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/checksum.h"
#include "client/cli/commands.h"
#include "daemon/access/principals.h"

namespace prefixd::cli {
namespace {

using daemon::PrincipalPtr;
using daemon::Principals;
using ::testing::HasSubstr;
using ::testing::Not;

struct Ran {
  int exit_code = 0;
  std::string out, err;
};

class TokenTest : public ::testing::Test {
 protected:
  TokenTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "prefixd_token_XXXXXX");
    folder_ = ::mkdtemp(pattern.data());
  }
  ~TokenTest() override { std::filesystem::remove_all(folder_); }

  Ran Run(const std::vector<std::string>& more, const std::string& role = "worker",
          const std::string& tenant = "a") {
    std::vector<std::string> arguments = {"token", "--name",   "vllm-1", "--role",
                                          role,    "--tenant", tenant};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::istringstream in;
    std::ostringstream out, err;
    const Surroundings surroundings{.environment = {{"PREFIXD_TOKEN_FILE", "/nonexistent"}},
                                    .exists = [](const std::string&) { return false; }};
    const int code = RunPrefixctl(arguments, surroundings, {.in = in, .out = out, .err = err});
    return {code, out.str(), err.str()};
  }
  std::string Path() const { return folder_ + "/vllm-1.token"; }

  std::string folder_;
};

// Returns who holds `secret` by an access file with this entry.
PrincipalPtr Holder(const std::string& entry, const base::Secret& secret) {
  const auto read = Principals::Parse("{\"tokens\": [" + entry + "]}");
  EXPECT_TRUE(read.ok()) << read.status() << entry;
  return read.ok() ? read->OfToken(base::Sha256(secret)) : nullptr;
}

TEST_F(TokenTest, TheFileHoldsTheTokenAndTheEntryNamesItsHolder) {
  const Ran ran =
      Run({"--file", Path(), "--expires", "2099-01-01T00:00:00Z", "--sessions", "8",
           "--requests-per-s", "100", "--lease-bytes", "1GiB", "--bytes-in-flight", "64MiB"});
  ASSERT_EQ(ran.exit_code, kExitOk) << ran.err;
  const auto secret = base::ReadSecret(Path());  // checks its mode too
  ASSERT_TRUE(secret.ok()) << secret.status();
  ASSERT_TRUE(secret->has_value());
  EXPECT_THAT(ran.out, Not(HasSubstr(base::SecretText(**secret).substr(17, 64))));
  const PrincipalPtr who = Holder(ran.out, **secret);
  ASSERT_NE(who, nullptr);
  EXPECT_EQ(who->name, "vllm-1");
  EXPECT_EQ(who->tenant, "a");
  EXPECT_EQ(who->role, daemon::Role::kWorker);
  EXPECT_EQ(who->sessions, 8u);
  EXPECT_EQ(who->requests_per_s, 100u);
  EXPECT_EQ(who->lease_bytes, uint64_t{1} << 30);
  EXPECT_EQ(who->bytes_in_flight, uint64_t{64} << 20);
  EXPECT_EQ(absl::FormatTime(absl::RFC3339_sec, who->expires, absl::UTCTimeZone()),
            "2099-01-01T00:00:00+00:00");
}

TEST_F(TokenTest, WithoutAFileTheTokenIsPrinted) {
  const Ran ran = Run({});
  ASSERT_EQ(ran.exit_code, kExitOk) << ran.err;
  const size_t token = ran.out.find("prefixd secret 1 "), entry = ran.out.find("{\"name\"");
  ASSERT_NE(token, std::string::npos) << ran.out;
  ASSERT_NE(entry, std::string::npos) << ran.out;
  {
    std::ofstream file(Path());
    file << ran.out.substr(token, ran.out.find('\n', token) + 1 - token);
  }
  std::filesystem::permissions(Path(), std::filesystem::perms(0600));
  const auto secret = base::ReadSecret(Path());
  ASSERT_TRUE(secret.ok()) << secret.status();
  EXPECT_NE(Holder(ran.out.substr(entry), **secret), nullptr);
  const auto json = nlohmann::json::parse(Run({"--json"}).out);
  EXPECT_THAT(json["token"].get<std::string>(), HasSubstr("prefixd secret 1 "));
  EXPECT_EQ(json["entry"]["name"], "vllm-1");
}

TEST_F(TokenTest, NoTwoTokensAreEqual) { EXPECT_NE(Run({}).out, Run({}).out); }

// Its holder would be locked out.
TEST_F(TokenTest, AFileThatIsThereStays) {
  ASSERT_EQ(Run({"--file", Path()}).exit_code, kExitOk);
  const auto before = base::ReadSecret(Path());
  const Ran ran = Run({"--file", Path()});
  EXPECT_EQ(ran.exit_code, kExitRefused);
  EXPECT_THAT(ran.err, HasSubstr(Path() + " is there already"));
  EXPECT_EQ(**base::ReadSecret(Path()), **before);
}

TEST_F(TokenTest, WhatTheAccessFileWouldRefuseIsRefused) {
  EXPECT_THAT(Run({}, "owner").err, HasSubstr("--role"));
  EXPECT_THAT(Run({}, "worker", "*").err, HasSubstr("--role admin only"));
  EXPECT_THAT(Run({}, "worker", "").err, HasSubstr("--tenant has 0 bytes"));
  EXPECT_THAT(Run({"--expires", "tomorrow"}).err, HasSubstr("--expires: \"tomorrow\""));
  EXPECT_THAT(Run({"--sessions", "0"}).err, HasSubstr("--sessions"));
  EXPECT_THAT(Run({"--lease-bytes", "much"}).err, HasSubstr("--lease-bytes: \"much\""));
  EXPECT_THAT(Run({"--bytes-in-flight", "1MiB"}).err, HasSubstr("one Put takes 4 MiB"));
  EXPECT_EQ(Run({}, "worker", "*").exit_code, kExitUsage);
  EXPECT_EQ(Run({}, "admin", "*").exit_code, kExitOk);
}

}  // namespace
}  // namespace prefixd::cli
