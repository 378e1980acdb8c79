// Sessions are private: what one worker has, another one neither guesses, lists nor ends.
#include <sys/stat.h>

#include <set>

#include "base/bytes.h"
#include "tests/daemon/fixture.h"
#include "wire/admin.h"

namespace prefixd::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;
using ::testing::Not;

class PrivateTest : public DaemonTest {
 protected:
  block::SpaceIdentity Salted(const std::string& salt) const {
    block::SpaceIdentity identity = identity_;
    identity.salt = salt;
    return identity;
  }
  uint64_t Opened(Worker& worker, const block::SpaceIdentity& identity) {
    v1::OpenSpaceReply reply;
    const grpc::Status status = worker.OpenSpace(identity, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply.space();
  }
  std::string AdminSocket() const { return dir_.path() + "/s.admin.sock"; }
};

// T5
TEST_F(PrivateTest, HandlesOfSpacesAreNotToBeGuessed) {
  std::set<uint64_t> handles = {space_};
  for (int i = 0; i < 50; ++i) handles.insert(Opened(*worker_, Salted(std::to_string(i))));
  EXPECT_EQ(handles.size(), 51u);
  uint64_t any = 0, all = ~uint64_t{0};
  for (const uint64_t handle : handles) {
    any |= handle;
    all &= handle;
    EXPECT_FALSE(handles.contains(handle + 1)) << handle << " has a neighbour";
  }
  // Each of the 64 bits is set in some and clear in others, but for once in 2^44 runs.
  EXPECT_EQ(any, ~uint64_t{0});
  EXPECT_EQ(all, 0u);
}

// T5
TEST_F(PrivateTest, NobodyMatchesWithoutASession) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  v1::AcquireRequest request = worker_->AcquireOf(space_, SomeTokens(1, 40));
  v1::AcquireReply reply;
  {
    Context context;
    ASSERT_TRUE(worker_->cache->Match(&context, request, &reply).ok());
    EXPECT_EQ(reply.answers(0).matched_tokens(), 40u);
  }
  request.set_session(0);
  Context context;
  const grpc::Status status = worker_->cache->Match(&context, request, &reply);
  EXPECT_EQ(status.error_code(), StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("match: unknown session, attach first"));
  *request.add_items() = request.items(0);  // so of sets
  for (auto& item : *request.mutable_items()) item.set_set(1);
  Context another;
  EXPECT_EQ(worker_->cache->Match(&another, request, &reply).error_code(), StatusCode::NOT_FOUND);
}

// T5: a handle that another session was given is worth nothing, to any verb that takes one.
TEST_F(PrivateTest, AHandleWorksOnlyWhereTheSpaceWasOpened) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  Worker stranger(target());
  stranger.Attach("stranger");
  const v1::AcquireRequest about = stranger.AcquireOf(space_, SomeTokens(1, 40));
  v1::AcquireRequest set = about;
  *set.add_items() = set.items(0);
  for (auto& item : *set.mutable_items()) item.set_set(1);
  const auto expect_unknown = [&](const char* verb, const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), StatusCode::NOT_FOUND) << verb;
    EXPECT_THAT(status.error_message(), HasSubstr("is not open in this session")) << verb;
  };
  v1::AcquireReply acquired;
  for (const v1::AcquireRequest& request : {about, set}) {
    Context match, acquire, prefetch;
    v1::PrefetchReply hints;
    expect_unknown("match", stranger.cache->Match(&match, request, &acquired));
    expect_unknown("acquire", stranger.cache->Acquire(&acquire, request, &acquired));
    expect_unknown("prefetch", stranger.cache->Prefetch(&prefetch, request, &hints));
  }
  v1::ReserveReply plan;
  expect_unknown("reserve", stranger.Reserve(space_, SomeTokens(1, 40), &plan));
  Context pinning, unpinning;
  v1::PinRequest pin;
  v1::PinReply pinned;
  pin.set_session(stranger.session);
  *pin.mutable_sequence() = about.items(0).sequence();
  expect_unknown("pin", stranger.cache->Pin(&pinning, pin, &pinned));
  v1::UnpinRequest unpin;
  v1::UnpinReply unpinned;
  unpin.set_session(stranger.session);
  *unpin.mutable_sequence() = about.items(0).sequence();
  expect_unknown("unpin", stranger.cache->Unpin(&unpinning, unpin, &unpinned));
  // What it opens itself, it has.
  EXPECT_EQ(Opened(stranger, identity_), space_);
  EXPECT_TRUE(stranger.Acquire(space_, SomeTokens(1, 40), &acquired).ok());
}

// T5: pins are ended by who made them and by people, not by counting.
TEST_F(PrivateTest, PinsHaveNoNeighbours) {
  uint64_t pins[2] = {};
  for (uint64_t i = 0; i < 2; ++i) {
    v1::CommitReply stored;
    ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(i + 1, 40), &stored).ok());
    v1::PinRequest request;
    request.set_session(worker_->session);
    wire::ToProto({space_}, {SomeTokens(i + 1, 40), {}}, request.mutable_sequence());
    Context context;
    v1::PinReply reply;
    ASSERT_TRUE(worker_->cache->Pin(&context, request, &reply).ok());
    pins[i] = reply.pin();
  }
  EXPECT_GT(std::max(pins[0], pins[1]) - std::min(pins[0], pins[1]), uint64_t{1} << 32);
}

// T5
TEST_F(PrivateTest, WhereWorkersConnectNobodyIsListedEndedOrCleared) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  const auto admin = v1::Admin::NewStub(Worker::Channel(target()));
  const auto refused = [&](const char* verb, auto method, auto request, auto reply) {
    Context context;
    const grpc::Status status = ((*admin).*method)(&context, request, &reply);
    EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED) << verb;
    EXPECT_THAT(status.error_message(), HasSubstr(std::string(verb) + ": ")) << verb;
    EXPECT_THAT(status.error_message(), HasSubstr(AdminSocket())) << verb;
    EXPECT_EQ(reply.ByteSizeLong(), 0u) << verb;
  };
  using Stub = v1::Admin::Stub;
  v1::EndSessionRequest end;
  end.set_session(cache_->NameOf({worker_->session}).value);
  v1::SetBudgetsRequest budgets;
  budgets.set_ram_bytes(uint64_t{32} << 20);
  refused("list_spaces", &Stub::ListSpaces, v1::ListSpacesRequest(), v1::ListSpacesReply());
  refused("clear", &Stub::Clear, v1::ClearRequest(), v1::ClearReply());
  refused("flush", &Stub::Flush, v1::FlushRequest(), v1::FlushReply());
  refused("verify", &Stub::Verify, v1::VerifyRequest(), v1::VerifyReply());
  refused("list_sessions", &Stub::ListSessions, v1::ListSessionsRequest(), v1::ListSessionsReply());
  refused("list_leases", &Stub::ListLeases, v1::ListLeasesRequest(), v1::ListLeasesReply());
  refused("end_session", &Stub::EndSession, end, v1::EndSessionReply());
  refused("list_pins", &Stub::ListPins, v1::ListPinsRequest(), v1::ListPinsReply());
  refused("set_budgets", &Stub::SetBudgets, budgets, v1::SetBudgetsReply());
  refused("set_space_limits", &Stub::SetSpaceLimits, v1::SetSpaceLimitsRequest(),
          v1::SetSpaceLimitsReply());
  refused("why", &Stub::Why, v1::WhyRequest(), v1::WhyReply());
  refused("list_prefixes", &Stub::ListPrefixes, v1::ListPrefixesRequest(), v1::ListPrefixesReply());
  v1::AcquireReply acquired;
  ASSERT_TRUE(worker_->Acquire(space_, SomeTokens(1, 40), &acquired).ok());
  EXPECT_EQ(acquired.answers(0).restorable_tokens(), 40u);
}

// T5: monitors of workers see sums, not what others have.
TEST_F(PrivateTest, WhereWorkersConnectThereAreSumsAndSettings) {
  const auto admin = v1::Admin::NewStub(Worker::Channel(target()));
  Context stats_context, config_context;
  v1::GetStatsReply stats;
  ASSERT_TRUE(admin->GetStats(&stats_context, {}, &stats).ok());
  EXPECT_EQ(stats.sessions(), 1u);
  EXPECT_EQ(stats.spaces_size(), 0);
  EXPECT_TRUE(stats.spaces_hidden());
  EXPECT_EQ(worker_->Stats().spaces_size(), 1);
  EXPECT_FALSE(worker_->Stats().spaces_hidden());
  v1::GetConfigReply config;
  ASSERT_TRUE(admin->GetConfig(&config_context, {}, &config).ok());
  EXPECT_GT(config.limits_size(), 0);
}

// T5
TEST_F(PrivateTest, TheAdminSocketIsItsOwnersAlone) {
  struct stat info {};
  ASSERT_EQ(::stat(AdminSocket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);
}

// T5
TEST_F(PrivateTest, TheAdminSocketMayBeAGroupsToo) {
  server_.reset();
  daemon::ServerOptions options;
  options.socket = dir_.path() + "/s";
  options.admin_socket = AdminSocket();
  options.admin_group = ::getegid();
  auto server = daemon::Server::Start(cache_.get(), options);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  struct stat info {};
  ASSERT_EQ(::stat(AdminSocket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0660u);
  EXPECT_EQ(info.st_gid, ::getegid());
}

// T5
TEST_F(PrivateTest, SaltsAreShownAsDigests) {
  const std::string salt = "user-4711@example.com";
  Opened(*worker_, Salted(salt));
  Context context;
  v1::ListSpacesRequest request;
  v1::ListSpacesReply spaces;
  ASSERT_TRUE(worker_->admin->ListSpaces(&context, request, &spaces).ok());
  EXPECT_THAT(spaces.SerializeAsString(), Not(HasSubstr(salt)));
  EXPECT_THAT(worker_->Stats().SerializeAsString(), Not(HasSubstr(salt)));
  ASSERT_EQ(spaces.spaces_size(), 2);
  std::set<std::string> digests;
  for (const auto& space : spaces.spaces()) digests.insert(space.salt_digest());
  // printf user-4711@example.com | sha256sum
  const std::string digest =
      std::string(base::AsText(base::Sha256(base::AsBytes(salt))).substr(0, 8));
  EXPECT_EQ(digests, (std::set<std::string>{"", digest}));
}

// T5: neither lists nor the log tell the number by which a session acts.
TEST_F(PrivateTest, IdsOfSessionsAreShownToNobody) {
  Worker other(target());
  other.Attach("other");
  Context sessions_context, leases_context;
  v1::ListSessionsReply sessions;
  ASSERT_TRUE(worker_->admin->ListSessions(&sessions_context, {}, &sessions).ok());
  ASSERT_EQ(sessions.sessions_size(), 2);
  std::set<uint64_t> names;
  for (const auto& session : sessions.sessions()) {
    names.insert(session.session());
    EXPECT_NE(session.session(), worker_->session);
    EXPECT_NE(session.session(), other.session);
    // It opens no door.
    v1::AcquireRequest request = worker_->AcquireOf(space_, SomeTokens(1, 40));
    request.set_session(session.session());
    Context context;
    v1::AcquireReply reply;
    EXPECT_EQ(worker_->cache->Acquire(&context, request, &reply).error_code(),
              StatusCode::NOT_FOUND);
  }
  EXPECT_EQ(names.size(), 2u);
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  v1::AcquireReply acquired;
  ASSERT_TRUE(worker_->Acquire(space_, SomeTokens(1, 40), &acquired).ok());
  v1::ListLeasesReply leases;
  ASSERT_TRUE(worker_->admin->ListLeases(&leases_context, {}, &leases).ok());
  ASSERT_EQ(leases.leases_size(), 1);
  EXPECT_TRUE(names.contains(leases.leases(0).session()));
}

// T5: people end a session by the name that they see.
TEST_F(PrivateTest, ASessionIsEndedByItsName) {
  Worker other(target());
  other.Attach("other");
  const auto end = [&](uint64_t session) {
    Context context;
    v1::EndSessionRequest request;
    request.set_session(session);
    v1::EndSessionReply reply;
    return worker_->admin->EndSession(&context, request, &reply);
  };
  EXPECT_EQ(end(other.session).error_code(), StatusCode::NOT_FOUND);
  EXPECT_TRUE(end(cache_->NameOf({other.session}).value).ok());
  v1::SessionEvent event;
  EXPECT_FALSE(other.events->Read(&event));
  EXPECT_EQ(other.events->Finish().error_code(), StatusCode::ABORTED);
  other.events.reset();
  v1::AcquireReply acquired;
  EXPECT_TRUE(worker_->Acquire(space_, SomeTokens(1, 40), &acquired).ok());
}

}  // namespace
}  // namespace prefixd::testing
