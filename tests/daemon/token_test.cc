// TCP, which every user of the host reaches, is served to those who have the token.
#include <sys/stat.h>

#include <fstream>

#include "base/bytes.h"
#include "tests/daemon/program_fixture.h"

namespace prefixd::testing {
namespace {

using daemon::LoadToken;
using grpc::StatusCode;

class TokenTest : public DaemonTest {
 protected:
  // `authorization` as it goes over the wire; empty: none.
  void ExpectNothing(const std::string& authorization) {
    SCOPED_TRACE("authorization: " + authorization);
    const auto channel = Worker::Channel(tcp());
    const auto cache = v1::PrefixCache::NewStub(channel);
    const auto admin = v1::Admin::NewStub(channel);
    const auto refused = [&](const char* verb, const auto& call) {
      Context context;
      if (!authorization.empty()) context.AddMetadata("authorization", authorization);
      const grpc::Status status = call(&context);
      EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << verb;
      EXPECT_THAT(status.error_message(), HasSubstr("$PREFIXD_TOKEN_FILE")) << verb;
    };
    // What a session of the unix socket may do, nobody does in its name over TCP.
    const v1::AcquireRequest about = worker_->AcquireOf(space_, SomeTokens(1, 40));
    refused("attach", [&](auto* context) {
      auto events = cache->Attach(context, v1::AttachRequest());
      v1::SessionEvent event;
      EXPECT_FALSE(events->Read(&event));
      return events->Finish();
    });
    refused("fetch", [&](auto* context) {
      auto pages = cache->Fetch(context, v1::FetchRequest());
      v1::FetchChunk chunk;
      EXPECT_FALSE(pages->Read(&chunk));
      return pages->Finish();
    });
    refused("put", [&](auto* context) {
      v1::CommitReply reply;
      auto pages = cache->Put(context, &reply);
      pages->WritesDone();
      return pages->Finish();
    });
    const auto unary = [&](const char* verb, auto* stub, auto method, const auto& request,
                           auto reply) {
      refused(verb, [&](auto* context) { return (stub->*method)(context, request, &reply); });
    };
    using Stub = v1::PrefixCache::Stub;
    v1::OpenSpaceRequest open;
    open.set_session(worker_->session);
    *open.mutable_identity() = wire::ToProto(identity_);
    unary("open_space", cache.get(), &Stub::OpenSpace, open, v1::OpenSpaceReply());
    unary("not_shared", cache.get(), &Stub::NotShared, v1::NotSharedRequest(), v1::Ack());
    unary("device_pins", cache.get(), &Stub::TellDevicePins, v1::DevicePinsRequest(), v1::Ack());
    unary("match", cache.get(), &Stub::Match, about, v1::AcquireReply());
    unary("acquire", cache.get(), &Stub::Acquire, about, v1::AcquireReply());
    unary("prefetch", cache.get(), &Stub::Prefetch, about, v1::PrefetchReply());
    unary("release", cache.get(), &Stub::Release, v1::ReleaseRequest(), v1::Ack());
    unary("reserve", cache.get(), &Stub::Reserve, v1::ReserveRequest(), v1::ReserveReply());
    unary("commit", cache.get(), &Stub::Commit, v1::CommitRequest(), v1::CommitReply());
    unary("abandon", cache.get(), &Stub::Abandon, v1::AbandonRequest(), v1::Ack());
    unary("pin", cache.get(), &Stub::Pin, v1::PinRequest(), v1::PinReply());
    unary("unpin", cache.get(), &Stub::Unpin, v1::UnpinRequest(), v1::UnpinReply());
    using Admin = v1::Admin::Stub;
    unary("get_stats", admin.get(), &Admin::GetStats, v1::GetStatsRequest(), v1::GetStatsReply());
    unary("get_config", admin.get(), &Admin::GetConfig, v1::GetConfigRequest(),
          v1::GetConfigReply());
    unary("clear", admin.get(), &Admin::Clear, v1::ClearRequest(), v1::ClearReply());
  }
  static mode_t ModeOf(const std::string& path) {
    struct stat info {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
    return info.st_mode & 0777u;
  }
};

// T5
TEST_F(TokenTest, WithoutTheTokenTcpServesNothing) { ExpectNothing(""); }

// T5
TEST_F(TokenTest, AnotherTokenIsNone) {
  const std::string right = wire::BearerText(token_.secret);
  std::string last = right;
  last.back() = last.back() == '0' ? '1' : '0';
  for (const std::string& wrong :
       {last, right.substr(0, right.size() - 1), right + "0", right.substr(7), "bearer " + last,
        std::string("Bearer "), std::string("Bearer ") + std::string(64, 'g')}) {
    ExpectNothing(wrong);
  }
}

// T5
TEST_F(TokenTest, WithTheTokenAWorkerOnTcpStoresAndReads) {
  Worker remote(tcp(), TokenFile());
  remote.Attach("remote");
  v1::OpenSpaceReply space;
  ASSERT_TRUE(remote.OpenSpace(identity_, &space).ok());
  v1::CommitReply stored;
  ASSERT_TRUE(remote.Store(identity_, space.space(), SomeTokens(1, 40), &stored).ok());
  EXPECT_EQ(stored.stored_tokens(), 40u);
  v1::AcquireReply acquired;
  ASSERT_TRUE(remote.Acquire(space.space(), SomeTokens(1, 40), &acquired).ok());
  Pages pages;
  std::vector<v1::GroupReady> ready;
  ASSERT_TRUE(remote.Fetch(acquired.answers(0).lease(), &pages, &ready).ok());
  EXPECT_FALSE(pages.empty());
  EXPECT_EQ(remote.Stats().sessions(), 2u);
}

// T5: not even with the token.
TEST_F(TokenTest, NobodyAdministersOverTcp) {
  Worker remote(tcp(), TokenFile());
  Context context;
  v1::ClearReply reply;
  const grpc::Status status = remote.admin->Clear(&context, {}, &reply);
  EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(), HasSubstr("s.admin.sock on prefixd's host"));
}

// T5
TEST_F(TokenTest, ThereIsNoTcpWithoutAToken) {
  daemon::ServerOptions options;
  options.socket = dir_.path() + "/other";
  options.listen = "127.0.0.1:0";
  const auto server = daemon::Server::Start(cache_.get(), options);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(server.status().ToString(), HasSubstr("wants a token"));
}

// T5
TEST_F(TokenTest, TheFileIsMadeOnceAndIsItsOwnersAlone) {
  const std::string path = dir_.path() + "/made";
  const auto made = LoadToken(path);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(ModeOf(path), 0600u);
  const auto again = LoadToken(path);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(base::Equal(made->secret, again->secret));
  const auto other = LoadToken(path + "2");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE(base::Equal(made->secret, other->secret));
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  const absl::Status open = LoadToken(path).status();
  EXPECT_EQ(open.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(open.ToString(), HasSubstr(path));
}

// T5
TEST_F(ProgramTest, T5TheDaemonMakesItsTokenAndItsAdminSocket) {
  std::vector<std::string> args = Args();
  args.insert(args.end(), {"--listen", "127.0.0.1:0"});
  Start(args);
  ASSERT_TRUE(Serves()) << Log();
  ASSERT_TRUE(Says("for callers with the token of " + dir_.path() + "/s.token")) << Log();
  for (const char* path : {"/s.token", "/s.admin.sock"}) {
    struct stat info {};
    ASSERT_EQ(::stat((dir_.path() + path).c_str(), &info), 0) << path;
    EXPECT_EQ(info.st_mode & 0777u, 0600u) << path;
  }
  // Neither the log nor the settings tell it.
  std::stringstream text;
  text << std::ifstream(dir_.path() + "/s.token").rdbuf();
  const std::string secret = text.str().substr(17, 64);
  EXPECT_THAT(Log(), ::testing::Not(HasSubstr(secret)));
  const size_t at = Log().find("127.0.0.1:0 port ");
  ASSERT_NE(at, std::string::npos) << Log();
  Worker remote("127.0.0.1:" + std::to_string(std::atoi(Log().c_str() + at + 17)),
                dir_.path() + "/s.token");
  remote.Attach("remote");
  // T5: the log has another number than the one by which the session acts.
  ASSERT_TRUE(Says("attach session=")) << Log();
  EXPECT_THAT(Log(), ::testing::Not(HasSubstr(absl::StrCat(absl::Hex(remote.session)))));
}

}  // namespace
}  // namespace prefixd::testing
