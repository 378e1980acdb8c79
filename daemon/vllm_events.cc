#include "daemon/vllm_events.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"

namespace prefixd::daemon {
namespace {

struct Medium {
  const char* name;
  bool (*has)(const block::Tiers& tiers);
};
constexpr std::array<Medium, 2> kMediums = {
    {{"CPU", [](const block::Tiers& tiers) { return tiers.ram; }},
     {"DISK", [](const block::Tiers& tiers) { return tiers.ssd || tiers.mixed; }}}};

uint64_t NameOf(const block::BlockHash& hash) {
  uint64_t name = 0;
  for (size_t i = hash.size() - 8; i < hash.size(); ++i) {
    name = name << 8 | static_cast<uint64_t>(hash[i]);
  }
  return name;
}

// The items of a block as vLLM names them: an identifier, and where the item begins, counted from
// the start of the block.
nlohmann::json ExtraKeys(const block::StoredBlock& block) {
  nlohmann::json keys = nlohmann::json::array();
  for (const block::ContentKey& key : block.content) {
    keys.push_back({base::ToHex(key.digest), int64_t{key.start} - int64_t{key.item_offset}});
  }
  return nlohmann::json::array({keys});
}

nlohmann::json Stored(const PublishedSpace& space, const block::StoredBlock& block,
                      const char* medium) {
  nlohmann::json event = {{"type", "BlockStored"},
                          {"block_hashes", {NameOf(block.hash)}},
                          {"parent_block_hash", nullptr},
                          {"token_ids", block.token_ids},
                          {"block_size", space.block_tokens},
                          {"lora_id", nullptr},
                          {"medium", medium},
                          {"lora_name", nullptr},
                          {"group_idx", 0},
                          {"kv_cache_spec_kind", "full_attention"}};
  if (!space.adapter.empty()) event["lora_name"] = space.adapter;
  if (block.first_token > 0) event["parent_block_hash"] = NameOf(block.parent);
  if (!block.content.empty()) event["extra_keys"] = ExtraKeys(block);
  return event;
}

nlohmann::json Removed(const block::StoredBlock& block, const char* medium) {
  return {{"type", "BlockRemoved"},
          {"block_hashes", {NameOf(block.hash)}},
          {"medium", medium},
          {"group_idx", 0}};
}

}  // namespace

PublishedSpace PublishedSpaceOf(const block::SpaceIdentity& identity) {
  const bool full = std::ranges::any_of(identity.groups, [](const block::LayerGroup& group) {
    return group.kind == block::LayerKind::kFull;
  });
  const bool adapted = identity.adapter_digest != base::Digest256{};
  return {.published = full && identity.salt.empty() && identity.role == block::Role::kTarget,
          .model = identity.model,
          .adapter = adapted ? base::ToHex(identity.adapter_digest) : "",
          .block_tokens = identity.block_tokens};
}

void AppendStored(const PublishedSpace& space, const block::StoredBlock& block,
                  const block::Tiers& before, std::vector<nlohmann::json>* events) {
  if (!space.published || block.tokens != space.block_tokens) return;
  for (const Medium& medium : kMediums) {
    const bool has = medium.has(block.state.tiers), had = medium.has(before);
    if (has && !had && !block.token_ids.empty()) {
      events->push_back(Stored(space, block, medium.name));
    }
    if (had && !has) events->push_back(Removed(block, medium.name));
  }
}

void AppendEvent(const PublishedSpace& space, const block::BlockEvent& event,
                 std::vector<nlohmann::json>* events) {
  if (event.kind == block::EventKind::kCleared) return;  // its blocks were removed before
  AppendStored(space, event.block, event.tiers_before, events);
}

nlohmann::json AllBlocksCleared() { return {{"type", "AllBlocksCleared"}}; }

std::string EncodeBatch(double unix_s, const std::vector<nlohmann::json>& events) {
  const nlohmann::json batch = {unix_s, events, 0};
  std::string bytes;
  nlohmann::json::to_msgpack(batch, bytes);
  return bytes;
}

}  // namespace prefixd::daemon
