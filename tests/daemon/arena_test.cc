// Workers that map the arena, over the real sockets: attach, exchange, read in place, end.
#include "tests/daemon/fd_client.h"
#include "tests/daemon/fixture.h"

namespace prefixd::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

// What a mapping worker holds beside its session.
struct Mapped {
  Descriptor file, lock, staging;
};

class ArenaTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    if (!cache_->arena().shared) GTEST_SKIP() << "no tmpfs to share memory in";
  }
  std::string fd_path() const { return dir_.path() + "/s.fd"; }
  Mapped Take(const Worker& worker) {
    FdReply reply = ExchangeKey(fd_path(), worker.attached.key());
    EXPECT_EQ(reply.text, worker.attached.key());
    Mapped mapped;
    if (reply.files.size() > 0) mapped.file = std::move(reply.files[0]);
    if (reply.files.size() > 1) mapped.lock = std::move(reply.files[1]);
    if (reply.files.size() > 2) mapped.staging = std::move(reply.files[2]);
    return mapped;
  }
  void ExpectPages(const Worker& worker, const Mapped& mapped,
                   const google::protobuf::RepeatedPtrField<v1::GroupPages>& columns,
                   const Tokens& tokens, uint32_t first_block = 0) {
    const Mapping arena(mapped.file, worker.attached.arena_file_bytes(), PROT_READ);
    ASSERT_TRUE(arena.ok());
    ASSERT_EQ(columns.size(), 2);
    for (const v1::GroupPages& group : columns) {
      EXPECT_TRUE(group.ready());
      for (int b = 0; b < group.offset_size(); ++b) {
        const uint32_t first = (first_block + static_cast<uint32_t>(b)) * 16;
        const auto wanted =
            MakePage(identity_.groups[group.group()], 0, tokens, first, group.page_tokens(b));
        EXPECT_EQ(std::string(arena.at(worker.attached.arena_data_offset() + group.offset(b)),
                              wanted.size()),
                  base::AsText(wanted))
            << "group " << group.group() << " token " << first;
      }
    }
  }
  v1::ListSessionsReply Sessions() {
    Context context;
    v1::ListSessionsReply reply;
    EXPECT_TRUE(worker_->admin->ListSessions(&context, {}, &reply).ok());
    return reply;
  }
  const v1::ListSessionsReply::Session* Find(const v1::ListSessionsReply& reply, uint64_t id) {
    for (const auto& session : reply.sessions()) {
      if (session.session() == cache_->NameOf({id}).value) return &session;
    }
    return nullptr;
  }
  grpc::Status End(uint64_t session, v1::EndSessionReply* reply) {
    Context context;
    v1::EndSessionRequest request;
    request.set_session(cache_->NameOf({session}).value);
    return worker_->admin->EndSession(&context, request, reply);
  }
};

TEST_F(ArenaTest, AWorkerReadsInPlaceWhatAnotherStored) {
  const Tokens tokens = SomeTokens(1, 53);
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, tokens, &stored).ok());
  Worker reader(target());
  reader.AttachArena();
  reader.Open(identity_);
  ASSERT_TRUE(reader.attached.arena()) << reader.attached.why_no_arena();
  EXPECT_EQ(reader.attached.fd_socket(), "s.fd");
  const Mapped mapped = Take(reader);
  v1::AcquireReply reply;
  ASSERT_TRUE(reader.Acquire(space_, tokens, &reply).ok());
  EXPECT_EQ(reply.answers(0).restorable_tokens(), 53u);
  ExpectPages(reader, mapped, reply.answers(0).pages(), tokens);
}

TEST_F(ArenaTest, NobodyWritesThroughAWorkersDescriptor) {
  Worker reader(target());
  reader.AttachArena();
  reader.Open(identity_);
  const Mapped mapped = Take(reader);
  EXPECT_FALSE(Mapping(mapped.file, 4096, PROT_READ | PROT_WRITE).ok());
  EXPECT_LT(::pwrite(mapped.file.get(), "x", 1, 0), 0);
}

// A5: a key is good once.
TEST_F(ArenaTest, AKeyIsGoodOnceAndOthersNever) {
  Worker reader(target());
  reader.AttachArena();
  reader.Open(identity_);
  const Mapped mapped = Take(reader);
  const FdReply again = ExchangeKey(fd_path(), reader.attached.key());
  EXPECT_NE(again.text, reader.attached.key());
  EXPECT_TRUE(again.files.empty());
  EXPECT_TRUE(ExchangeKey(fd_path(), std::string(16, '\0')).files.empty());
}

TEST_F(ArenaTest, ATcpPeerGetsNoArena) {
  Worker remote(tcp(), TokenFile());
  remote.AttachArena();
  EXPECT_FALSE(remote.attached.arena());
  EXPECT_THAT(remote.attached.why_no_arena(), HasSubstr("unix socket"));
  EXPECT_EQ(remote.attached.key(), "");
  v1::OpenSpaceReply space;
  EXPECT_TRUE(remote.OpenSpace(identity_, &space).ok());
}

TEST_F(ArenaTest, AWorkerOfAnotherArenaVersionGetsNoneAndIsServed) {
  v1::AttachRequest request;
  request.set_protocol(1);
  request.set_wants_arena(true);
  request.set_arena_version(block::kArenaVersion + 1);
  Worker newer(target());
  newer.Attach(request);
  newer.Open(identity_);
  EXPECT_FALSE(newer.attached.arena());
  EXPECT_THAT(newer.attached.why_no_arena(),
              HasSubstr("knows arena version " + std::to_string(block::kArenaVersion + 1)));
  EXPECT_EQ(newer.attached.arena_version(), block::kArenaVersion);
  v1::CommitReply stored;
  EXPECT_TRUE(newer.Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
}

TEST_F(ArenaTest, SixtyFourMapAndTheSixtyFifthFetches) {
  std::vector<std::unique_ptr<Worker>> workers;
  std::set<uint32_t> slots;
  for (int i = 0; i < 64; ++i) {
    workers.push_back(std::make_unique<Worker>(target()));
    workers.back()->AttachArena("w" + std::to_string(i), 0);
    ASSERT_TRUE(workers.back()->attached.arena()) << i;
    slots.insert(workers.back()->attached.slot());
  }
  EXPECT_EQ(slots.size(), 64u);
  Worker last(target());
  last.AttachArena();
  last.Open(identity_);
  EXPECT_FALSE(last.attached.arena());
  EXPECT_THAT(last.attached.why_no_arena(), HasSubstr("all 64 places"));
  v1::CommitReply stored;
  ASSERT_TRUE(last.Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  v1::AcquireReply reply;
  ASSERT_TRUE(last.Acquire(space_, SomeTokens(1, 40), &reply).ok());
  EXPECT_EQ(reply.answers(0).pages(0).offset_size(), 0);
  Pages pages;
  std::vector<v1::GroupReady> ready;
  EXPECT_TRUE(last.Fetch(reply.answers(0).lease(), &pages, &ready).ok());
  EXPECT_EQ(pages.size(), 6u);
}

TEST_F(ArenaTest, StagedPagesAreCommittedAndLeasedToTheirWriter) {
  const Tokens tokens = SomeTokens(5, 40);
  Worker writer(target());
  writer.AttachArena();
  writer.Open(identity_);
  ASSERT_GE(writer.attached.staging_bytes(), 64u << 10);
  const Mapped mapped = Take(writer);
  const Mapping staging(mapped.staging, writer.attached.staging_bytes(), PROT_READ | PROT_WRITE);
  ASSERT_TRUE(staging.ok());
  v1::AcquireRequest acquire = writer.AcquireOf(space_, tokens);
  acquire.mutable_items(0)->set_reserve(true);
  v1::AcquireReply acquired;
  Context context;
  ASSERT_TRUE(writer.cache->Acquire(&context, acquire, &acquired).ok());
  const v1::ReserveReply& plan = acquired.answers(0).reserved();
  EXPECT_EQ(plan.epoch(), writer.epoch);
  ASSERT_EQ(plan.blocks_size(), 3) << acquired.answers(0).reserve_error();
  v1::CommitRequest commit;
  commit.set_session(writer.session);
  commit.set_reservation(plan.reservation());
  commit.set_tokens(40);
  commit.set_lease(true);
  uint64_t at = 0;
  for (uint32_t group = 0; group < 2; ++group) {
    v1::StagedPages* staged = commit.add_staged();
    staged->set_group(group);
    for (const v1::BlockPlan& block : plan.blocks()) {
      const v1::PageBytes page = Worker::PageOf(identity_, tokens, block, group);
      page.data().copy(staging.at(at), page.data().size());
      staged->add_first_token(block.first_token());
      staged->add_rung(0);
      staged->add_offset(at);
      at += (page.data().size() + 127) / 128 * 128;
    }
  }
  v1::CommitReply reply;
  Context commit_context;
  const grpc::Status status = writer.cache->Commit(&commit_context, commit, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.stored_tokens(), 40u);
  EXPECT_NE(reply.lease(), 0u);
  ExpectPages(writer, mapped, reply.pages(), tokens, reply.first_block());
}

TEST_F(ArenaTest, ASessionThatIsEndedByHandIsKeptWhileItsProcessMayRead) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  Worker reader(target());
  reader.AttachArena("stuck");
  reader.Open(identity_);
  Mapped mapped = Take(reader);
  v1::AcquireReply acquired;
  ASSERT_TRUE(reader.Acquire(space_, SomeTokens(1, 40), &acquired).ok());
  v1::EndSessionReply ended;
  ASSERT_TRUE(End(reader.session, &ended).ok());
  EXPECT_TRUE(ended.still_held());
  EXPECT_EQ(ended.pid(), static_cast<uint64_t>(::getpid()));
  v1::SessionEvent event;
  EXPECT_FALSE(reader.events->Read(&event));
  EXPECT_EQ(reader.events->Finish().error_code(), StatusCode::ABORTED);
  reader.events.reset();
  const v1::ListSessionsReply list = Sessions();
  const auto* kept = Find(list, reader.session);
  ASSERT_NE(kept, nullptr);
  EXPECT_FALSE(kept->attached());
  EXPECT_EQ(kept->worker(), "stuck");
  EXPECT_GT(kept->leased_bytes(), 0u);
  mapped.lock = Descriptor();  // as its death does
  EXPECT_TRUE(Eventually([&](const v1::GetStatsReply& stats) {
    return stats.leases() == 0 && Find(Sessions(), reader.session) == nullptr;
  }));
}

TEST_F(ArenaTest, ASessionThatMapsNothingEndsAtOnce) {
  Worker plain(target());
  plain.Attach();
  v1::EndSessionReply ended;
  ASSERT_TRUE(End(plain.session, &ended).ok());
  EXPECT_FALSE(ended.still_held());
  EXPECT_EQ(Find(Sessions(), plain.session), nullptr);
  EXPECT_EQ(End(plain.session, &ended).error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(End(0, &ended).error_code(), StatusCode::NOT_FOUND);
}

TEST_F(ArenaTest, ACutOffSessionIsResumedByItsKey) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  Worker reader(target());
  reader.AttachArena("again");
  reader.Open(identity_);
  const Mapped mapped = Take(reader);
  const uint32_t slot = reader.attached.slot();
  const std::string key = reader.attached.key();
  v1::AcquireReply acquired;
  ASSERT_TRUE(reader.Acquire(space_, SomeTokens(1, 40), &acquired).ok());
  const uint64_t cut_off = reader.session;
  reader.Detach();
  EXPECT_TRUE(Eventually([&](const v1::GetStatsReply&) {
    const v1::ListSessionsReply list = Sessions();
    const auto* found = Find(list, cut_off);
    return found != nullptr && !found->attached();
  }));
  reader.AttachArena("again", 0, key);
  reader.Open(identity_);
  EXPECT_TRUE(reader.attached.resumed());
  EXPECT_EQ(reader.attached.slot(), slot);
  EXPECT_NE(reader.attached.resumed_lease(), 0u);
}

TEST_F(ArenaTest, ListsNameSessionsAndLeases) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  Worker reader(target());
  reader.AttachArena("lister");
  reader.Open(identity_);
  const Mapped mapped = Take(reader);
  v1::AcquireReply acquired;
  ASSERT_TRUE(reader.Acquire(space_, SomeTokens(1, 40), &acquired).ok());
  const v1::ListSessionsReply list = Sessions();
  const auto* session = Find(list, reader.session);
  ASSERT_NE(session, nullptr);
  EXPECT_TRUE(session->attached());
  EXPECT_TRUE(session->maps_arena());
  EXPECT_EQ(session->pid(), static_cast<uint64_t>(::getpid()));
  EXPECT_EQ(session->leases(), 1u);
  EXPECT_EQ(session->staging_bytes(), reader.attached.staging_bytes());
  v1::ListLeasesReply leases;
  Context context;
  ASSERT_TRUE(worker_->admin->ListLeases(&context, {}, &leases).ok());
  ASSERT_EQ(leases.leases_size(), 1);
  EXPECT_EQ(leases.leases(0).session(), cache_->NameOf({reader.session}).value);
  EXPECT_EQ(leases.leases(0).lease(), acquired.answers(0).lease());
  EXPECT_EQ(leases.leases(0).tokens(), 40u);
  EXPECT_EQ(leases.leases(0).pages(), 6u);
  EXPECT_EQ(leases.leases(0).space_id().size(), 32u);
  EXPECT_TRUE(worker_->Stats().arena().shared());
}

}  // namespace
}  // namespace prefixd::testing
