// Every RPC's happy path, over a real unix socket.
#include <sys/stat.h>

#include <thread>

#include "tests/daemon/fixture.h"

namespace prefixd::testing {
namespace {

using RpcTest = DaemonTest;

TEST_F(RpcTest, WhatWasPutIsAcquiredAndFetchedByteForByte) {
  const Tokens tokens = SomeTokens(1, 53);
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, tokens, &stored).ok());
  EXPECT_EQ(stored.stored_tokens(), 53u);
  EXPECT_EQ(stored.epoch(), worker_->epoch);
  v1::AcquireReply reply;
  ASSERT_TRUE(worker_->Acquire(space_, tokens, &reply).ok());
  ASSERT_EQ(reply.answers_size(), 1);
  EXPECT_EQ(reply.answers(0).kind(), v1::MATCH_KIND_EXACT);
  EXPECT_EQ(reply.answers(0).restorable_tokens(), 53u);
  ASSERT_EQ(reply.answers(0).pages_size(), 2);
  EXPECT_EQ(reply.answers(0).pages(0).rung_size(), 4);
  Pages pages;
  std::vector<v1::GroupReady> ready;
  ASSERT_TRUE(worker_->Fetch(reply.answers(0).lease(), &pages, &ready).ok());
  EXPECT_EQ(pages.size(), 8u);
  for (const auto& [place, bytes] : pages) {
    const auto& [group, first] = place;
    const auto expected =
        MakePage(identity_.groups[group], 0, tokens, first, std::min(16u, 53u - first));
    EXPECT_EQ(bytes, base::AsText(expected)) << "group " << group << " token " << first;
  }
  ASSERT_EQ(ready.size(), 2u);
  EXPECT_EQ(ready[1].usable_tokens(), 53u);
}

TEST_F(RpcTest, AMatchSaysWhatAnAcquireWouldAndPinsNothing) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  Context context;
  v1::AcquireReply reply;
  ASSERT_TRUE(
      worker_->cache->Match(&context, worker_->AcquireOf(space_, SomeTokens(1, 30)), &reply).ok());
  EXPECT_EQ(reply.answers(0).kind(), v1::MATCH_KIND_SUPERSEQUENCE);
  EXPECT_EQ(reply.answers(0).matched_tokens(), 30u);
  EXPECT_EQ(reply.answers(0).lease(), 0u);
  EXPECT_EQ(worker_->Stats().leases(), 0u);
}

TEST_F(RpcTest, ManyItemsAndReleasesTravelInOneCall) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  v1::AcquireReply first;
  ASSERT_TRUE(worker_->Acquire(space_, SomeTokens(1, 40), &first).ok());
  v1::AcquireRequest request = worker_->AcquireOf(space_, SomeTokens(1, 20));
  *request.add_items() = request.items(0);
  request.mutable_items(1)->set_max_tokens(7);
  request.add_release()->set_lease(first.answers(0).lease());
  v1::AcquireReply reply;
  Context context;
  ASSERT_TRUE(worker_->cache->Acquire(&context, request, &reply).ok());
  ASSERT_EQ(reply.answers_size(), 2);
  EXPECT_EQ(reply.answers(0).restorable_tokens(), 20u);
  EXPECT_EQ(reply.answers(1).restorable_tokens(), 7u);
  EXPECT_EQ(worker_->Stats().leases(), 2u);
}

TEST_F(RpcTest, AReleaseEndsTheLease) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  v1::AcquireReply reply;
  ASSERT_TRUE(worker_->Acquire(space_, SomeTokens(1, 40), &reply).ok());
  EXPECT_EQ(worker_->Stats().leases(), 1u);
  v1::ReleaseRequest request;
  request.set_session(worker_->session);
  request.add_release()->set_lease(reply.answers(0).lease());
  request.mutable_release(0)->set_used_tokens(39);
  v1::Ack ack;
  Context context;
  ASSERT_TRUE(worker_->cache->Release(&context, request, &ack).ok());
  EXPECT_EQ(ack.epoch(), worker_->epoch);
  EXPECT_EQ(worker_->Stats().leases(), 0u);
}

TEST_F(RpcTest, PagesOfSeveralStreamsArePublishedByACommit) {
  const Tokens tokens = SomeTokens(2, 32);
  v1::ReserveReply plan;
  ASSERT_TRUE(worker_->Reserve(space_, tokens, &plan).ok());
  ASSERT_EQ(plan.blocks_size(), 2);
  std::vector<v1::PutChunk> chunks = worker_->ChunksOf(identity_, tokens, plan, false);
  const std::vector<v1::PutChunk> first(chunks.begin(), chunks.begin() + 3);
  chunks.erase(chunks.begin() + 1, chunks.begin() + 3);
  v1::CommitReply reply;
  ASSERT_TRUE(worker_->Put(first, &reply).ok());
  ASSERT_TRUE(worker_->Put(chunks, &reply).ok());
  EXPECT_EQ(reply.stored_tokens(), 0u);
  v1::CommitRequest commit;
  commit.set_session(worker_->session);
  commit.set_reservation(plan.reservation());
  commit.set_tokens(32);
  Context context;
  ASSERT_TRUE(worker_->cache->Commit(&context, commit, &reply).ok());
  EXPECT_EQ(reply.stored_tokens(), 32u);
}

TEST_F(RpcTest, APageInPiecesArrivesWhole) {
  const Tokens tokens = SomeTokens(3, 16);
  v1::ReserveReply plan;
  ASSERT_TRUE(worker_->Reserve(space_, tokens, &plan).ok());
  std::vector<v1::PutChunk> pieces;
  for (v1::PutChunk& chunk : worker_->ChunksOf(identity_, tokens, plan, true)) {
    if (!chunk.has_page()) {
      pieces.push_back(chunk);
      continue;
    }
    const std::string all = chunk.page().data();
    for (size_t offset = 0; offset < all.size(); offset += 1000) {
      chunk.mutable_page()->set_offset(offset);
      chunk.mutable_page()->set_data(all.substr(offset, 1000));
      chunk.mutable_page()->set_xxh3(base::Xxh3(base::AsBytes(chunk.page().data())));
      pieces.push_back(chunk);
    }
  }
  v1::CommitReply reply;
  const grpc::Status status = worker_->Put(pieces, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.stored_tokens(), 16u);
}

TEST_F(RpcTest, AnAbandonedReservationIsGone) {
  v1::ReserveReply plan;
  ASSERT_TRUE(worker_->Reserve(space_, SomeTokens(4, 32), &plan).ok());
  v1::AbandonRequest request;
  request.set_session(worker_->session);
  request.set_reservation(plan.reservation());
  v1::Ack ack;
  Context context;
  ASSERT_TRUE(worker_->cache->Abandon(&context, request, &ack).ok());
  EXPECT_EQ(worker_->Stats().reservations(), 0u);
}

TEST_F(RpcTest, TheSpaceOfAnotherIdentitySaysWhatDiffers) {
  block::SpaceIdentity other = identity_;
  other.rope.theta = 5;
  v1::OpenSpaceReply reply;
  ASSERT_TRUE(worker_->OpenSpace(other, &reply).ok());
  EXPECT_TRUE(reply.created());
  EXPECT_EQ(reply.space_id().size(), 32u);
  EXPECT_EQ(reply.block_tokens(), 16u);
  EXPECT_EQ(reply.nearest_model(), "small");
  ASSERT_EQ(reply.differing_fields_size(), 1);
  EXPECT_EQ(reply.differing_fields(0), "rope.theta");
}

TEST_F(RpcTest, SpacesAreListedWithTheirTenantAndExplained) {
  block::SpaceIdentity other = identity_;
  other.salt = "x";
  v1::OpenSpaceReply opened;
  ASSERT_TRUE(worker_->OpenSpace(other, &opened).ok());
  v1::ListSpacesRequest request;
  request.set_explain_against(opened.space_id());
  v1::ListSpacesReply reply;
  Context context;
  ASSERT_TRUE(worker_->admin->ListSpaces(&context, request, &reply).ok());
  ASSERT_EQ(reply.spaces_size(), 2);
  for (const auto& space : reply.spaces()) {
    EXPECT_EQ(space.tenant(), "local");
    EXPECT_EQ(space.stats().formats(0), "mlx_affine/8/32/f16+mlx_affine/4/32/f16");
    EXPECT_EQ(space.differing_fields_size(), space.salt_digest().empty() ? 1 : 0);
  }
}

TEST_F(RpcTest, AClearedSpaceMatchesNothing) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  v1::ClearReply cleared;
  Context context;
  ASSERT_TRUE(worker_->admin->Clear(&context, {}, &cleared).ok());
  EXPECT_EQ(cleared.spaces(), 1u);
  EXPECT_GT(cleared.bytes(), 0u);
  v1::OpenSpaceReply opened;
  ASSERT_TRUE(worker_->OpenSpace(identity_, &opened).ok());
  v1::AcquireReply reply;
  ASSERT_TRUE(worker_->Acquire(opened.space(), SomeTokens(1, 40), &reply).ok());
  EXPECT_EQ(reply.answers(0).matched_tokens(), 0u);
}

TEST_F(RpcTest, APurgeGoesStepByStepToItsEnd) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  uint64_t cleared = 0, passed = 0, steps = 0;
  v1::ClearRequest request;
  request.set_purge(true);
  do {
    Context context;
    v1::ClearReply reply;
    ASSERT_TRUE(worker_->admin->Clear(&context, request, &reply).ok());
    EXPECT_GT(reply.total_bytes(), 0u);
    EXPECT_EQ(reply.leased_bytes(), 0u);
    cleared += reply.bytes();
    passed += reply.passed_bytes();
    request.set_cursor(reply.next());
  } while (request.cursor() != 0 && ++steps < 1000);
  EXPECT_GT(cleared, 0u);
  EXPECT_GT(passed, 0u);
  EXPECT_LT(steps, 1000u);
}

TEST_F(RpcTest, VerifyReadsEverythingAndPrefetchSaysWhatWillBeThere) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  uint64_t pages = 0, steps = 0;
  v1::VerifyRequest request;
  do {
    Context context;
    v1::VerifyReply reply;
    ASSERT_TRUE(worker_->admin->Verify(&context, request, &reply).ok());
    EXPECT_EQ(reply.bad() + reply.unreadable(), 0u);
    EXPECT_GT(reply.total_bytes(), 0u);
    pages += reply.pages();
    request.set_cursor(reply.next());
  } while (request.cursor() != 0 && ++steps < 1000);
  EXPECT_GT(pages, 0u);
  Context context;
  v1::AcquireRequest prefetch;
  prefetch.set_session(worker_->session);
  v1::Sequence* sequence = prefetch.add_items()->mutable_sequence();
  sequence->set_space(space_);
  for (uint32_t token : SomeTokens(1, 40)) sequence->add_tokens(token);
  v1::PrefetchReply reply;
  ASSERT_TRUE(worker_->cache->Prefetch(&context, prefetch, &reply).ok());
  ASSERT_EQ(reply.hints_size(), 1);
  EXPECT_EQ(reply.hints(0).tokens(), 40u);
  EXPECT_EQ(reply.hints(0).bytes(), 0u);  // in RAM
}

TEST_F(RpcTest, AFlushLeavesNothingDirty) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  v1::FlushReply reply;
  Context context;
  ASSERT_TRUE(worker_->admin->Flush(&context, {}, &reply).ok());
  EXPECT_EQ(reply.dirty_bytes(), 0u);
  EXPECT_EQ(worker_->Stats().dirty_bytes(), 0u);
}

TEST_F(RpcTest, ConfigTellsSettingsTheirSourceAndTheLimits) {
  v1::GetConfigReply reply;
  Context context;
  ASSERT_TRUE(worker_->admin->GetConfig(&context, {}, &reply).ok());
  EXPECT_EQ(reply.version(), "test");
  ASSERT_EQ(reply.settings_size(), 1);
  EXPECT_EQ(reply.settings(0).source(), "flag");
  std::map<std::string, std::string> limits;
  for (const auto& limit : reply.limits()) limits[limit.name()] = limit.value();
  EXPECT_EQ(limits["tokens_per_request"], "2097152");
  EXPECT_EQ(limits["items_per_request"], "16");
  EXPECT_EQ(limits["ends_per_request"], "4096");
}

TEST_F(RpcTest, StatsCountCallsAndTheirTimes) {
  v1::AcquireReply reply;
  ASSERT_TRUE(worker_->Acquire(space_, SomeTokens(1, 10), &reply).ok());
  const v1::GetStatsReply stats = worker_->Stats();
  EXPECT_EQ(worker_->Counter("rpc.acquire"), 1u);
  EXPECT_EQ(stats.sessions(), 1u);
  bool timed = false;
  for (const v1::Latency& latency : stats.latencies())
    timed = timed || latency.name() == "rpc.acquire";
  EXPECT_TRUE(timed);
}

TEST_F(RpcTest, ASessionThatEndsGivesItsLeasesAndReservationsBack) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  {
    Worker other(target());
    other.Attach();
    other.Open(identity_);
    v1::AcquireReply reply;
    ASSERT_TRUE(other.Acquire(space_, SomeTokens(1, 40), &reply).ok());
    v1::ReserveReply plan;
    ASSERT_TRUE(other.Reserve(space_, SomeTokens(5, 40), &plan).ok());
    EXPECT_EQ(worker_->Stats().leases(), 1u);
  }
  EXPECT_TRUE(Eventually([](const v1::GetStatsReply& stats) {
    return stats.sessions() == 1 && stats.leases() == 0 && stats.reservations() == 0;
  }));
}

TEST_F(RpcTest, ADrainIsToldToSessionsAndRefusesNewOnes) {
  server_->BeginDrain(1234);
  v1::SessionEvent event;
  ASSERT_TRUE(worker_->events->Read(&event));
  EXPECT_EQ(event.draining().deadline_ms(), 1234u);
  v1::ReserveReply plan;
  EXPECT_EQ(worker_->Reserve(space_, SomeTokens(1, 10), &plan).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  v1::AcquireReply acquired;
  EXPECT_TRUE(worker_->Acquire(space_, SomeTokens(1, 10), &acquired).ok());
  v1::AttachRequest attach;
  attach.set_protocol(1);
  Context context;
  EXPECT_EQ(worker_->cache->Attach(&context, attach)->Finish().error_code(),
            grpc::StatusCode::UNAVAILABLE);
  server_->Stop();
  EXPECT_FALSE(worker_->events->Read(&event));
  Serve();
}

TEST_F(RpcTest, TheSocketIsForOwnerAndGroup) {
  struct stat info {};
  ASSERT_EQ(::stat((dir_.path() + "/s").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0660u);
}

TEST_F(RpcTest, LoopbackTcpServesTheSameTenant) {
  Worker remote(tcp(), TokenFile());
  remote.Attach();
  v1::OpenSpaceReply reply;
  ASSERT_TRUE(remote.OpenSpace(identity_, &reply).ok());
  EXPECT_EQ(reply.space(), space_);
}

// A drain refuses what begins and waits for what runs.
TEST_F(RpcTest, APutThatRunsWhenTheDrainBeginsIsStored) {
  const Tokens tokens = SomeTokens(8, 32);
  v1::ReserveReply plan;
  ASSERT_TRUE(worker_->Reserve(space_, tokens, &plan).ok());
  const std::vector<v1::PutChunk> chunks = worker_->ChunksOf(identity_, tokens, plan, true);
  Context context;
  v1::CommitReply reply;
  auto writer = worker_->cache->Put(&context, &reply);
  ASSERT_TRUE(writer->Write(chunks[0]));
  EXPECT_TRUE(Eventually([this](const v1::GetStatsReply&) { return !server_->idle(); }));
  server_->BeginDrain(5000);
  v1::SessionEvent event;
  ASSERT_TRUE(worker_->events->Read(&event));
  EXPECT_EQ(event.draining().deadline_ms(), 5000u);
  v1::ReserveReply refused;
  EXPECT_EQ(worker_->Reserve(space_, SomeTokens(9, 32), &refused).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  v1::AcquireRequest acquire = worker_->AcquireOf(space_, SomeTokens(9, 32));
  acquire.mutable_items(0)->set_reserve(true);
  v1::AcquireReply acquired;
  Context acquire_context;
  ASSERT_TRUE(worker_->cache->Acquire(&acquire_context, acquire, &acquired).ok());
  EXPECT_THAT(acquired.answers(0).reserve_error(), ::testing::HasSubstr("is stopping"));
  EXPECT_FALSE(server_->idle());
  for (size_t i = 1; i < chunks.size(); ++i) ASSERT_TRUE(writer->Write(chunks[i]));
  writer->WritesDone();
  EXPECT_TRUE(writer->Finish().ok());
  EXPECT_EQ(reply.stored_tokens(), 32u);
  EXPECT_TRUE(Eventually([this](const v1::GetStatsReply&) { return server_->idle(); }));
  Serve();
}

// A worker that reads no events costs 8 MiB, and then its session.
TEST_F(RpcTest, AReaderThatLeavesItsEventsUnreadIsEnded) {
  Worker deaf(target());
  deaf.Attach("deaf");
  Worker listener(target());
  listener.Attach("listener");
  const auto attached = [this](const std::string& name) {
    Context context;
    v1::ListSessionsReply list;
    EXPECT_TRUE(worker_->admin->ListSessions(&context, {}, &list).ok());
    for (const auto& session : list.sessions()) {
      if (session.worker() == name) return true;
    }
    return false;
  };
  std::thread listening([&listener] {
    for (v1::SessionEvent event; listener.events->Read(&event);) {
    }
  });
  for (int round = 0; round < 200 && attached("deaf"); ++round) {
    for (int i = 0; i < 20'000; ++i) server_->BeginDrain(1000);
  }
  EXPECT_FALSE(attached("deaf"));
  grpc::Status status;
  for (v1::SessionEvent event; deaf.events->Read(&event);) {
  }
  EXPECT_EQ(deaf.events->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  deaf.events.reset();
  listener.Cancel();
  listening.join();
  Serve();
}

}  // namespace
}  // namespace prefixd::testing
