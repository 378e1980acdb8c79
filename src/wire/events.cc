#include "wire/events.h"

#include "base/status.h"
#include "block/layer_group.h"
#include "wire/admin.h"

namespace prefixd::wire {
namespace {

using Tiers = google::protobuf::RepeatedField<int>;

void WriteTiers(const block::Tiers& tiers, Tiers* proto) {
  if (tiers.ram) proto->Add(v1::StoredBlock::TIER_RAM);
  if (tiers.ssd) proto->Add(v1::StoredBlock::TIER_SSD);
  if (tiers.mixed) proto->Add(v1::StoredBlock::TIER_MIXED);
}

void WriteTokens(const block::StoredBlock& block, v1::StoredBlock* proto) {
  proto->mutable_token_ids()->Add(block.token_ids.begin(), block.token_ids.end());
  for (const block::ContentKey& key : block.content) {
    v1::ContentKey* const to = proto->add_content();
    to->set_start(key.start);
    to->set_length(key.length);
    to->set_item_offset(key.item_offset);
    to->set_digest(key.digest.data(), key.digest.size());
  }
}

void WriteBlock(const block::StoredBlock& block, v1::StoredBlock* proto) {
  proto->set_space_id(block.space.data(), block.space.size());
  if (block.tokens == 0) return;  // only a space
  proto->set_block_hash(block.hash.data(), block.hash.size());
  proto->set_first_token(block.first_token);
  proto->set_tokens(block.tokens);
  if (!block.state.stored) return;
  if (block.first_token > 0) proto->set_parent_hash(block.parent.data(), block.parent.size());
  WriteTiers(block.state.tiers, proto->mutable_tiers());
  for (uint32_t group = 0; group < block::kMaxGroups; ++group) {
    if ((block.state.windows >> group & 1) != 0) proto->add_windows(group);
  }
  for (uint32_t k = 1; k <= block.tokens; ++k) {
    if (block.state.snapshots.test(k - 1)) proto->add_snapshots(block.first_token + k);
  }
  WriteTokens(block, proto);
}

}  // namespace

void ToProto(const block::EventBatch& batch, v1::WatchEventsReply* proto) {
  proto->set_sequence(batch.sequence);
  proto->set_snapshot_begins(batch.snapshot_begins);
  proto->set_whole(batch.whole);
  proto->set_index_loading(batch.loading);
  for (const block::StoredBlock& block : batch.blocks) WriteBlock(block, proto->add_blocks());
  for (const block::BlockEvent& event : batch.events) {
    v1::BlockEvent* const to = proto->add_events();
    to->set_kind(static_cast<v1::BlockEvent::Kind>(event.kind));
    WriteBlock(event.block, to->mutable_block());
    WriteTiers(event.tiers_before, to->mutable_tiers_before());
  }
}

absl::StatusOr<block::EventQuery> FromProto(const v1::WatchEventsRequest& proto, uint64_t epoch) {
  block::EventQuery query;
  block::SpaceId space{};
  bool given = false;
  PREFIXD_RETURN_IF_ERROR(ReadSpaceId(proto.space_id(), &space, &given));
  if (given) query.space = space;
  query.with_tokens = proto.with_tokens();
  if (proto.epoch() == epoch) query.after = proto.sequence();
  return query;
}

}  // namespace prefixd::wire
