// A client of a daemon behind TCP, with its token and without.
#include <stdlib.h>

#include "base/secret_file.h"
#include "tests/client/daemon.h"

namespace prefixd {
namespace {

using std::chrono::milliseconds;

class ClientTokenTest : public ::testing::Test {
 protected:
  ClientTokenTest() {
    const auto token = daemon::LoadToken(file());
    EXPECT_TRUE(token.ok()) << token.status();
    daemon_ = std::make_unique<Daemon>(directory_.socket(), DaemonOptions{.token = *token});
  }
  ~ClientTokenTest() override { ::unsetenv("PREFIXD_TOKEN_FILE"); }
  std::string file() const { return directory_.path() + "/token"; }
  std::string address() const { return "127.0.0.1:" + std::to_string(daemon_->port()); }
  // What the client says while it is not attached.
  static std::string WhyNot(const Client& client) { return client.arena().why_not; }
  static void ExpectRefused(const ClientOptions& options, const std::string& why) {
    Client client(options);
    Result<Space> space = client.OpenSpace(SmallSpace(MlxAffine(8, 64, Dtype::kF16)));
    ASSERT_TRUE(space.ok()) << space.status.message;  // a private cache, as without a daemon
    EXPECT_FALSE(client.attached());
    EXPECT_NE(WhyNot(client).find(why), std::string::npos) << WhyNot(client);
    const Sequence seq = space.value().Begin(Tokens(100, 1));
    EXPECT_EQ(seq.match().status.code, StatusCode::kUnavailable);
    EXPECT_NE(seq.match().status.message.find(why), std::string::npos)
        << seq.match().status.message;
  }
  static void ExpectServed(const ClientOptions& options) {
    const SpaceSpec spec = SmallSpace(MlxAffine(8, 64, Dtype::kF16));
    Client client(options);
    Result<Space> space = client.OpenSpace(spec);
    ASSERT_TRUE(space.ok()) << space.status.message;
    ASSERT_TRUE(client.WaitAttached(milliseconds(20'000))) << WhyNot(client);
    const std::vector<uint32_t> tokens = Tokens(200, 1);
    {
      Sequence seq = space.value().Begin(tokens);
      AppendTokens(seq, spec, tokens, seq.WaitAll(), 200);
      const Result<CommitInfo> stored = seq.Commit({.sequence_end = true});
      EXPECT_TRUE(stored.status.ok()) << stored.status.message;
    }
    Sequence again = space.value().Begin(tokens);  // pages by Put and Fetch, on their own channel
    EXPECT_EQ(again.WaitAll(), 200u) << again.match().status.message;
  }

  TempDirectory directory_;
  std::unique_ptr<Daemon> daemon_;
};

// T5
TEST_F(ClientTokenTest, WithoutItTheClientIsToldWhatToDo) {
  ExpectRefused({.address = address()}, "name a copy of the file that prefixd's --token-file");
}

// T5
TEST_F(ClientTokenTest, AFileThatCannotBeReadIsNamed) {
  ExpectRefused({.address = address(), .token_file = file() + ".gone"}, file() + ".gone");
  ASSERT_EQ(::chmod(file().c_str(), 0644), 0);
  ExpectRefused({.address = address(), .token_file = file()}, "may be read or written by others");
}

// T5
TEST_F(ClientTokenTest, WithItTheClientStoresAndReads) {
  ExpectServed({.address = address(), .token_file = file()});
}

// T5
TEST_F(ClientTokenTest, TheVariableNamesItToo) {
  ::setenv("PREFIXD_TOKEN_FILE", file().c_str(), 1);
  ExpectServed({.address = address()});
}

// T5: a daemon that made another one is gone on with, without a restart of its workers.
TEST_F(ClientTokenTest, AnotherTokenIsReadWhenTheClientAttachesAgain) {
  const auto wrong = base::RandomSecret();
  ASSERT_TRUE(wrong.ok());
  const std::string mine = directory_.path() + "/mine";
  ASSERT_TRUE(base::WriteSecret(mine, *wrong).ok());
  Client client({.address = address(), .token_file = mine});
  Result<Space> space = client.OpenSpace(SmallSpace(MlxAffine(8, 64, Dtype::kF16)));
  ASSERT_TRUE(space.ok());
  EXPECT_NE(WhyNot(client).find("wrong token"), std::string::npos) << WhyNot(client);
  std::filesystem::copy_file(file(), mine, std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(client.WaitAttached(milliseconds(20'000))) << WhyNot(client);
}

}  // namespace
}  // namespace prefixd
