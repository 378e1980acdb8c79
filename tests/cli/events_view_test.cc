// What prefixctl events prints.
#include <gtest/gtest.h>

#include "client/cli/events.h"
#include "client/cli/json.h"

namespace prefixd::cli {
namespace {

v1::StoredBlock BlockOf(char name, uint32_t first_token) {
  v1::StoredBlock block;
  block.set_space_id(std::string(32, 's'));
  block.set_block_hash(std::string(16, name));
  block.set_first_token(first_token);
  block.set_tokens(64);
  block.add_tiers(v1::StoredBlock::TIER_RAM);
  return block;
}

TEST(EventsViewTest, ASnapshotIsALineForEachBlockAndSaysWhenItIsComplete) {
  v1::WatchEventsReply reply;
  reply.set_epoch(0xab);
  reply.set_sequence(7);
  reply.set_snapshot_begins(true);
  reply.set_whole(true);
  *reply.add_blocks() = BlockOf('a', 1024);
  reply.mutable_blocks(0)->add_windows(1);
  reply.mutable_blocks(0)->add_snapshots(1088);
  EXPECT_EQ(EventsView(reply, false),
            "snapshot begins\n"
            "there    space 737373737373  block 61616161616161616161616161616161  "
            "tokens 1,024 to 1,088  in RAM  windows of groups 1  snapshots at 1088\n"
            "snapshot complete at event 7 of epoch 00000000000000ab\n");
  reply.set_snapshot_begins(false);
  reply.clear_blocks();
  EXPECT_EQ(EventsView(reply, true), "");
}

TEST(EventsViewTest, EachChangeIsALineWithWhereTheBlockIsAndWas) {
  v1::WatchEventsReply reply;
  reply.set_whole(true);
  v1::BlockEvent* event = reply.add_events();
  event->set_kind(v1::BlockEvent::KIND_CHANGED);
  *event->mutable_block() = BlockOf('a', 0);
  event->mutable_block()->add_tiers(v1::StoredBlock::TIER_SSD);
  event->add_tiers_before(v1::StoredBlock::TIER_RAM);
  event = reply.add_events();
  event->set_kind(v1::BlockEvent::KIND_REMOVED);
  *event->mutable_block() = BlockOf('b', 64);
  event = reply.add_events();
  event->set_kind(v1::BlockEvent::KIND_CLEARED);
  event->mutable_block()->set_space_id(std::string(32, 's'));
  EXPECT_EQ(EventsView(reply, true),
            "changed  space 737373737373  block 61616161616161616161616161616161  "
            "tokens 0 to 64  in RAM + SSD, before in RAM\n"
            "removed  space 737373737373  block 62626262626262626262626262626262  "
            "tokens 64 to 128\n"
            "cleared  space 737373737373\n");
}

TEST(EventsViewTest, JsonNamesTiersAndKindsInWords) {
  v1::WatchEventsReply reply;
  v1::BlockEvent* const event = reply.add_events();
  event->set_kind(v1::BlockEvent::KIND_STORED);
  *event->mutable_block() = BlockOf('a', 0);
  const std::string json = ReplyJson(reply);
  EXPECT_NE(json.find("\"kind\":\"stored\""), std::string::npos) << json;
  EXPECT_NE(json.find("\"tiers\":[\"ram\"]"), std::string::npos) << json;
}

}  // namespace
}  // namespace prefixd::cli
