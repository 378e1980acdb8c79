// Sessions are bound to their tenant, principals have limits, and what repeats fills no audit log:
// against the real program.
#include "daemon/access/principals.h"
#include "tests/daemon/access_fixture.h"

namespace prefixd::testing {
namespace {

using grpc::StatusCode;
using ::testing::AllOf;
using ::testing::AnyOf;

// A worker on TCP with a space of its own.
struct Storing {
  Storing(const std::string& target, const std::string& token_file) : worker(target, token_file) {
    worker.Attach();
    v1::OpenSpaceReply reply;
    const grpc::Status status = worker.OpenSpace(identity, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    space = reply.space();
  }
  void Store() {
    v1::CommitReply stored;
    const grpc::Status status = worker.Store(identity, space, SomeTokens(1, 40), &stored);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  grpc::Status Acquire(v1::AcquireReply* reply) {
    return worker.Acquire(space, SomeTokens(1, 40), reply);
  }

  const block::SpaceIdentity identity = SmallIdentity();
  Worker worker;
  uint64_t space = 0;
};

class AccessLimitsTest : public AccessTest {
 protected:
  void StartWith(const std::vector<std::string>& tokens) {
    WriteFile("access.json", AccessFile(tokens));
    StartOnTcp({{"--access", Path("access.json")}, {"--audit-log", Path("audit")}});
  }
};

// S6: whoever has a session's number and another tenant's token gets nothing by it.
TEST_F(AccessLimitsTest, S6ASessionServesItsTenantAlone) {
  StartWith({Entry("a", 1, "a", "worker"), Entry("b", 2, "b", "worker")});
  Storing a(tcp(), TokenFile(1));
  Worker b(tcp(), TokenFile(2));
  a.Store();
  v1::AcquireReply acquired;
  ASSERT_TRUE(a.Acquire(&acquired).ok());
  b.session = a.worker.session;
  const auto expect_refused = [](const char* verb, const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED) << verb;
    EXPECT_THAT(status.error_message(),
                AllOf(HasSubstr("token b of tenant b"), HasSubstr("session is of tenant a")))
        << verb;
  };
  v1::AcquireReply reply;
  v1::OpenSpaceReply opened;
  v1::ReserveReply plan;
  expect_refused("acquire", b.Acquire(a.space, SomeTokens(1, 40), &reply));
  expect_refused("open_space", b.OpenSpace(a.identity, &opened));
  expect_refused("reserve", b.Reserve(a.space, SomeTokens(2, 40), &plan));
  Pages pages;
  std::vector<v1::GroupReady> ready;
  expect_refused("fetch", b.Fetch(acquired.answers(0).lease(), &pages, &ready));
  EXPECT_TRUE(pages.empty());
  // A Put that is refused abandons nothing of the session's.
  ASSERT_TRUE(a.worker.Reserve(a.space, SomeTokens(3, 40), &plan).ok());
  const auto chunks = a.worker.ChunksOf(a.identity, SomeTokens(3, 40), plan, true);
  v1::CommitReply stored;
  expect_refused("put", b.Put(chunks, &stored));
  EXPECT_TRUE(a.worker.Put(chunks, &stored).ok());
  EXPECT_EQ(Counted("refused.tenant"), 5u);
  EXPECT_EQ(Times("audit", "refused: session: a request by token b of tenant b"), 5u);
  EXPECT_TRUE(a.Acquire(&acquired).ok());
}

// S6
TEST_F(AccessLimitsTest, S6ATokenThatMovesToAnotherTenantLosesItsSession) {
  StartWith({Entry("w", 1, "a", "worker"), Entry("b", 2, "b", "worker")});
  Storing w(tcp(), TokenFile(1)), other(tcp(), TokenFile(2));
  w.Store();
  WriteFile("access.json",
            AccessFile({Entry("w", 1, "b", "worker"), Entry("b", 2, "b", "worker")}));
  v1::AcquireReply reply;
  EXPECT_THAT(w.Acquire(&reply).error_code(),
              AnyOf(StatusCode::PERMISSION_DENIED, StatusCode::NOT_FOUND));
  ASSERT_TRUE(Eventually([&] { return Counted("access.sessions_ended") == 1; }));
  v1::SessionEvent event;
  while (w.worker.events->Read(&event)) {
  }
  const grpc::Status end = w.worker.events->Finish();
  w.worker.events.reset();
  EXPECT_EQ(end.error_code(), StatusCode::ABORTED);
  EXPECT_THAT(end.error_message(), HasSubstr("does not have w of tenant a any more"));
  EXPECT_EQ(Times("audit", "a session of w of tenant a ended"), 1u);
  // It attaches again, and is of the new tenant.
  Storing again(tcp(), TokenFile(1));
  ASSERT_TRUE(again.Acquire(&reply).ok());
  EXPECT_EQ(reply.answers(0).matched_tokens(), 0u);
  EXPECT_TRUE(other.Acquire(&reply).ok());  // nobody else loses anything
}

// S6
TEST_F(AccessLimitsTest, S6ARevokedTokensSessionEndsAndFreesItsLeases) {
  StartWith({Entry("w", 1, "a", "worker"), Entry("v", 2, "a", "worker")});
  Storing w(tcp(), TokenFile(1)), v(tcp(), TokenFile(2));
  w.Store();
  v1::AcquireReply reply;
  ASSERT_TRUE(w.Acquire(&reply).ok());
  ASSERT_NE(reply.answers(0).lease(), 0u);
  WriteFile("access.json", AccessFile({Entry("v", 2, "a", "worker")}));
  EXPECT_TRUE(v.Acquire(&reply).ok());  // somebody calls
  const auto admin = v1::Admin::NewStub(Worker::Channel(Worker::AdminOf(target())));
  EXPECT_TRUE(Eventually([&] {
    Context context;
    v1::ListSessionsReply sessions;
    return admin->ListSessions(&context, {}, &sessions).ok() && sessions.sessions_size() == 1;
  }));
  Context context;
  v1::ListLeasesReply leases;
  ASSERT_TRUE(admin->ListLeases(&context, {}, &leases).ok());
  EXPECT_EQ(leases.leases_size(), 1);  // v's
}

// S6: who follows all tenants' events stops when the file does not have it any more.
TEST_F(AccessLimitsTest, S6ARevokedAdminFollowsNoEvents) {
  StartWith({Entry("o", 1, "*", "admin"), Entry("v", 2, "a", "reader")});
  Worker o(tcp(), TokenFile(1)), v(tcp(), TokenFile(2));
  Context context;
  auto events = o.admin->WatchEvents(&context, {});
  v1::WatchEventsReply reply;
  ASSERT_TRUE(events->Read(&reply));
  WriteFile("access.json", AccessFile({Entry("v", 2, "a", "reader")}));
  Context calls;
  v1::GetStatsReply stats;
  EXPECT_TRUE(v.admin->GetStats(&calls, {}, &stats).ok());  // somebody calls
  while (events->Read(&reply)) {
  }
  const grpc::Status end = events->Finish();
  EXPECT_EQ(end.error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(end.error_message(), HasSubstr("does not have o of tenant * any more"));
}

// S6
TEST_F(AccessLimitsTest, S6APrincipalsLeasesHoldNoMoreBytesThanItsLimit) {
  StartWith({Entry("w", 1, "a", "worker"), Entry("v", 2, "a", "worker")});
  Storing w(tcp(), TokenFile(1)), same(tcp(), TokenFile(1)), v(tcp(), TokenFile(2));
  w.Store();
  v1::AcquireReply first, reply;
  ASSERT_TRUE(w.Acquire(&first).ok());
  const uint64_t bytes = first.answers(0).ram_bytes();
  ASSERT_GT(bytes, 0u);
  const std::string most = std::to_string(2 * bytes - 1);
  WriteFile("access.json", AccessFile({Entry("w", 1, "a", "worker", ", \"lease_bytes\": " + most),
                                       Entry("v", 2, "a", "worker")}));
  // In another session of the principal too.
  for (Storing* const who : {&w, &same}) {
    const grpc::Status refused = who->Acquire(&reply);
    EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(refused.error_message(),
                AllOf(HasSubstr("hold " + std::to_string(bytes) + " bytes"),
                      HasSubstr("at most " + most), HasSubstr("lease_bytes")));
  }
  EXPECT_TRUE(v.Acquire(&reply).ok());
  Context context;
  v1::ReleaseRequest release;
  release.set_session(w.worker.session);
  release.add_release()->set_lease(first.answers(0).lease());
  v1::Ack ack;
  const grpc::Status released = w.worker.cache->Release(&context, release, &ack);
  ASSERT_TRUE(released.ok()) << released.error_message();
  EXPECT_TRUE(same.Acquire(&reply).ok());
  EXPECT_EQ(Counted("refused.lease_bytes"), 2u);
  EXPECT_EQ(Times("audit", "refused: lease of "), 2u);
}

// S6
TEST_F(AccessLimitsTest, S6APrincipalsStreamsHaveNoMoreBytesInFlightThanItsLimit) {
  StartWith({Entry("w", 1, "a", "worker",
                   ", \"bytes_in_flight\": " + std::to_string(daemon::kPutBytesInFlight)),
             Entry("v", 2, "a", "worker")});
  Storing w(tcp(), TokenFile(1)), v(tcp(), TokenFile(2));
  const auto refused = [&w] {
    Pages pages;
    std::vector<v1::GroupReady> ready;
    return w.worker.Fetch(1, &pages, &ready);
  };
  // The stream counts from when prefixd has heard of it. It may be refused itself, if a Fetch that
  // looks for it is just being served.
  v1::CommitReply reply;
  std::optional<Context> held;
  std::unique_ptr<grpc::ClientWriter<v1::PutChunk>> put;
  const auto put_is_held = [&] {
    held.emplace();
    put = w.worker.cache->Put(&*held, &reply);  // and sends nothing
    for (int looks = 0; looks < 200; ++looks) {
      if (refused().error_code() == StatusCode::RESOURCE_EXHAUSTED) return true;
    }
    held->TryCancel();
    put->Finish();
    return false;
  };
  ASSERT_TRUE(Eventually(put_is_held));
  EXPECT_THAT(refused().error_message(),
              AllOf(HasSubstr("PrefixCache.Fetch by w"), HasSubstr("have 4194304 bytes in flight"),
                    HasSubstr("at most 4194304"), HasSubstr("bytes_in_flight")));
  v.Store();
  held->TryCancel();
  put->Finish();
  EXPECT_TRUE(Eventually([&] { return refused().error_code() == StatusCode::NOT_FOUND; }));
  w.Store();
  EXPECT_GE(Counted("refused.in_flight"), 2u);
  EXPECT_GE(Times("audit", "refused: PrefixCache.Fetch by w"), 2u);
}

// S6: a stranger's message is not read, and one that is let in has its limit.
TEST_F(AccessLimitsTest, S6TheCallerIsKnownBeforeItsMessageIsRead) {
  StartWith({Entry("r", 1, "a", "reader"), Entry("m", 2, "a", "admin"), Entry("o", 3, "*", "admin"),
             Entry("b", 4, "b", "reader")});
  const auto channel = Worker::Channel(tcp());
  const std::string garbage = "\xff\xff\xff", large(300'000, 'x');
  for (const std::string& message : {garbage, large}) {
    for (const char* verb : {"Admin.Clear", "Admin.GetStats", "Admin.WatchEvents", "Admin.Why"}) {
      SCOPED_TRACE(verb);
      EXPECT_EQ(Call(channel, verb, std::nullopt, message).error_code(),
                StatusCode::UNAUTHENTICATED);
      EXPECT_EQ(Call(channel, verb, SecretOf(3), message).error_code(),
                StatusCode::INVALID_ARGUMENT);
    }
    EXPECT_EQ(Call(channel, "Admin.Clear", SecretOf(1), message).error_code(),
              StatusCode::PERMISSION_DENIED);
    EXPECT_EQ(Call(channel, "Admin.Clear", SecretOf(2), message).error_code(),
              StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_THAT(Call(channel, "Admin.Why", SecretOf(3), large).error_message(),
              HasSubstr("300000 bytes, at most 262144"));
}

// S6
TEST_F(AccessLimitsTest, S6AReadersRefusalsAreBoundedInTheAuditLog) {
  StartWith({Entry("r", 1, "a", "reader")});
  const auto channel = Worker::Channel(tcp());
  for (int i = 0; i < 300; ++i) Call(channel, "Admin.Clear", SecretOf(1));
  for (int i = 0; i < 300; ++i) Call(channel, "PrefixCache.Reserve", SecretOf(1));
  EXPECT_EQ(Counted("refused.role"), 600u);
  // Ten of each, and one more each ten seconds.
  EXPECT_LT(Times("audit", "Admin.Clear by token r"), 100u);
  EXPECT_LT(Times("audit", "PrefixCache.Reserve from"), 100u);
  EXPECT_GE(Times("audit", "PrefixCache.Reserve from"), 10u);
  ::kill(pid_, SIGTERM);
  Wait(pid_);
  EXPECT_THAT(Read(Path("audit")), HasSubstr("more lines of token r were left out"));
  EXPECT_THAT(Read(Path("audit")), HasSubstr("more lines of r were left out"));
}

// S6
TEST_F(AccessLimitsTest, S6AVerifyHasOneLineForAllItsSteps) {
  StartWith({Entry("o", 1, "*", "admin")});
  Worker o(tcp(), TokenFile(1));
  const auto verify = [&](uint64_t cursor) {
    Context context;
    v1::VerifyRequest request;
    request.set_cursor(cursor);
    v1::VerifyReply reply;
    EXPECT_TRUE(o.admin->Verify(&context, request, &reply).ok());
  };
  verify(0);
  for (uint64_t cursor = 1; cursor < 20; ++cursor) verify(cursor);
  EXPECT_EQ(Times("audit", "Admin.Verify by token o"), 1u);
  verify(0);
  EXPECT_EQ(Times("audit", "Admin.Verify by token o"), 2u);
  // A Clear that is no purge has no steps: nobody hides one.
  for (int i = 0; i < 2; ++i) {
    Context context;
    v1::ClearRequest request;
    request.set_cursor(1);
    v1::ClearReply reply;
    EXPECT_TRUE(o.admin->Clear(&context, request, &reply).ok());
  }
  EXPECT_EQ(Times("audit", "Admin.Clear by token o"), 2u);
}

}  // namespace
}  // namespace prefixd::testing
