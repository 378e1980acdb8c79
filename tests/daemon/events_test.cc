// WatchEvents over real sockets: what a router builds from it is what the daemon has.
#include "tests/daemon/event_index.h"
#include "tests/daemon/fixture.h"

namespace prefixd::testing {
namespace {

class EventsTest : public DaemonTest {
 protected:
  void Store(const Tokens& tokens) {
    v1::CommitReply stored;
    ASSERT_TRUE(worker_->Store(identity_, space_, tokens, &stored).ok());
  }
  v1::WatchEventsRequest WithTokens() const {
    v1::WatchEventsRequest request;
    request.set_with_tokens(true);
    return request;
  }
  v1::Admin::Stub* admin() { return worker_->admin.get(); }
  std::string SpaceId() {
    Context context;
    v1::ListSpacesReply reply;
    EXPECT_TRUE(admin()->ListSpaces(&context, {}, &reply).ok());
    return reply.spaces(0).stats().space_id();
  }
  void ClearAll() {
    Context context;
    v1::ClearReply reply;
    ASSERT_TRUE(admin()->Clear(&context, {}, &reply).ok());
  }
};

TEST_F(EventsTest, ASnapshotTellsEachBlockWithItsTokensParentsFirst) {
  const Tokens tokens = SomeTokens(1, 53);
  Store(tokens);
  EventIndex index;
  index.Connect(admin(), WithTokens());
  ASSERT_TRUE(index.UntilWhole());
  std::map<uint32_t, v1::StoredBlock> by_place;
  for (const auto& [name, bytes] : index.blocks()) {
    v1::StoredBlock block;
    ASSERT_TRUE(block.ParseFromString(bytes));
    by_place[block.first_token()] = block;
  }
  ASSERT_EQ(by_place.size(), 4u);
  std::string parent;
  for (const auto& [first, block] : by_place) {
    EXPECT_EQ(block.space_id(), SpaceId());
    EXPECT_EQ(block.parent_hash(), parent);
    EXPECT_EQ(block.tokens(), std::min(16u, 53u - first));
    EXPECT_TRUE(std::equal(block.token_ids().begin(), block.token_ids().end(),
                           tokens.begin() + first, tokens.begin() + first + block.tokens()));
    ASSERT_FALSE(block.tiers().empty());
    EXPECT_EQ(block.tiers(0), v1::StoredBlock::TIER_RAM);
    parent = block.block_hash();
  }
}

TEST_F(EventsTest, WhatIsStoredSpilledAndClearedIsToldInOrder) {
  EventIndex index;
  index.Connect(admin());
  ASSERT_TRUE(index.UntilWhole());
  Store(SomeTokens(1, 48));
  {
    Context context;
    v1::FlushReply reply;
    ASSERT_TRUE(admin()->Flush(&context, {}, &reply).ok());
  }
  ASSERT_TRUE(EqualsDump(index, admin()));
  EXPECT_EQ(index.blocks().size(), 3u);
  ClearAll();
  ASSERT_TRUE(index.Until([&] {
    return !index.events_unlocked().empty() &&
           index.events_unlocked().back().kind() == v1::BlockEvent::KIND_CLEARED;
  }));
  EXPECT_TRUE(index.blocks().empty());
  std::map<v1::BlockEvent::Kind, int> kinds;
  for (const v1::BlockEvent& event : index.events()) ++kinds[event.kind()];
  EXPECT_EQ(kinds[v1::BlockEvent::KIND_STORED], 3);
  EXPECT_GE(kinds[v1::BlockEvent::KIND_CHANGED], 3);  // RAM, then RAM and SSD
  EXPECT_EQ(kinds[v1::BlockEvent::KIND_REMOVED], 3);
  EXPECT_EQ(kinds[v1::BlockEvent::KIND_CLEARED], 1);
  EXPECT_EQ(index.snapshots(), 1u);
}

TEST_F(EventsTest, AListenerGoesOnWhereItStoodAndOneWithAnotherEpochBeginsAnew) {
  EventIndex index;
  index.Connect(admin());
  ASSERT_TRUE(index.UntilWhole());
  index.Disconnect();
  Store(SomeTokens(1, 48));
  index.Connect(admin(), {}, true);
  ASSERT_TRUE(EqualsDump(index, admin()));
  EXPECT_EQ(index.snapshots(), 1u);
  v1::WatchEventsRequest other;
  other.set_epoch(cache_->epoch() + 1);
  other.set_sequence(1);
  index.Connect(admin(), other);
  ASSERT_TRUE(index.UntilWhole());
  EXPECT_EQ(index.snapshots(), 2u);
  EXPECT_EQ(index.blocks().size(), 3u);
}

TEST_F(EventsTest, AListenerToOneSpaceHearsNothingOfOthers) {
  v1::WatchEventsRequest request;
  request.set_space_id(std::string(32, 'x'));
  EventIndex index, all;
  index.Connect(admin(), request);
  all.Connect(admin());
  ASSERT_TRUE(index.UntilWhole() && all.UntilWhole());
  Store(SomeTokens(1, 48));
  ASSERT_TRUE(all.Until([&] { return all.place_unlocked().sequence >= 3; }));
  ASSERT_TRUE(index.Until([&] { return index.place_unlocked().sequence >= 3; }));
  EXPECT_TRUE(index.blocks().empty());
  EXPECT_TRUE(index.events().empty());
  request.set_space_id("short");
  Context context;
  const auto stream = admin()->WatchEvents(&context, request);
  v1::WatchEventsReply reply;
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(EventsTest, SoManyMayListenAndNoMoreAndWorkersMayNot) {
  std::vector<std::unique_ptr<EventIndex>> listeners;
  for (int i = 0; i < 32; ++i) {
    listeners.push_back(std::make_unique<EventIndex>());
    listeners.back()->Connect(admin());
    ASSERT_TRUE(listeners.back()->UntilWhole());
  }
  const auto refused = [&](v1::Admin::Stub* stub) {
    Context context;
    const auto stream = stub->WatchEvents(&context, {});
    v1::WatchEventsReply reply;
    EXPECT_FALSE(stream->Read(&reply));
    return stream->Finish().error_code();
  };
  EXPECT_EQ(refused(admin()), grpc::StatusCode::RESOURCE_EXHAUSTED);
  listeners.pop_back();
  Eventually([&](const auto&) {
    EventIndex one;
    one.Connect(admin());
    return one.UntilWhole();
  });
  const auto workers = v1::Admin::NewStub(Worker::Channel(target()));
  EXPECT_EQ(refused(workers.get()), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(EventsTest, WhenTheDaemonStopsEveryStreamEndsAndSaysSo) {
  EventIndex index;
  index.Connect(admin());
  ASSERT_TRUE(index.UntilWhole());
  server_->Stop();
  EXPECT_EQ(index.Wait().error_code(), grpc::StatusCode::UNAVAILABLE);
  Serve();
}

}  // namespace
}  // namespace prefixd::testing
