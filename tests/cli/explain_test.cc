// What prefixctl says where no prefixd answers: each cause has advice of its own.
#include "client/cli/explain.h"

#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace prefixd::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Said(const char* what, const char* server = "tls://h:7777") {
  Options options;
  options.server = server;
  std::ostringstream err;
  const std::string message =
      std::string("failed to connect to all addresses; last error: ") + what;
  EXPECT_EQ(Explain(absl::UnavailableError(message), options, err), kExitUnreachable);
  EXPECT_THAT(err.str(), AllOf(HasSubstr(std::string("does not answer at ") + server + ": "),
                               HasSubstr(message)));
  return err.str();
}

TEST(ExplainTest, ASocketThatIsNotThereSaysHowToStartPrefixd) {
  EXPECT_THAT(Said("UNKNOWN: unix:/run/p.sock: No such file or directory"),
              HasSubstr("is it running? Start it (`systemctl start prefixd`; without systemd, as "
                        "its user, `prefixd`)"));
}

TEST(ExplainTest, ASocketThatMayNotBeOpenedSaysWhoMay) {
  EXPECT_THAT(Said("UNKNOWN: unix:/run/p.sock: Permission denied"),
              AllOf(HasSubstr("Members of the socket's group may"), Not(HasSubstr("running?"))));
}

TEST(ExplainTest, ACertificateThatIsNotTrustedSaysWhereToNameItsAuthority) {
  EXPECT_THAT(Said("UNKNOWN: ipv4:10.0.0.7:7777: Ssl handshake failed: SSL_ERROR_SSL: "
                   "error:0A000086:SSL routines::certificate verify failed"),
              AllOf(HasSubstr("$PREFIXD_TLS_CA"), Not(HasSubstr("running?"))));
}

TEST(ExplainTest, ACertificateOfAnotherHostSaysWhatMustBeInIt) {
  EXPECT_THAT(Said("UNKNOWN: ipv4:10.0.0.7:7777: Peer name 10.0.0.7 is not in peer certificate"),
              AllOf(HasSubstr("subjectAltName"), Not(HasSubstr("running?"))));
}

TEST(ExplainTest, ATcpConnectionThatIsClosedSaysHowToAskWithTls) {
  const char* const closed = "UNAVAILABLE: ipv4:10.0.0.7:7777: Socket closed";
  EXPECT_THAT(Said(closed, "10.0.0.7:7777"),
              AllOf(HasSubstr("--server tls://HOST:PORT"), Not(HasSubstr("running?"))));
  EXPECT_THAT(Said(closed, "tls://10.0.0.7:7777"), HasSubstr("running?"));
  EXPECT_THAT(Said("UNAVAILABLE: Socket closed", "unix:///run/p.sock"), HasSubstr("running?"));
}

TEST(ExplainTest, ARefusalIsInTheDaemonsWords) {
  std::ostringstream err;
  EXPECT_EQ(Explain(absl::PermissionDeniedError("Admin.Why: no"), {}, err), kExitRefused);
  EXPECT_EQ(err.str(), "prefixctl: Admin.Why: no\n");
}

}  // namespace
}  // namespace prefixd::cli
