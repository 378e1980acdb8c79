// Events in the form of vLLM 0.32's KV events, for routers that read those: Dynamo's, llm-d's.
//
// A batch is [time, [event, ...], rank] in MessagePack; an event is a map with its "type":
// BlockStored, BlockRemoved, AllBlocksCleared. A block is named by the last 8 bytes of its hash.
// Its "medium" is "CPU" for RAM and "DISK" for SSD, also if a part of the block is in RAM only; a
// block in both tiers is told once for each. Only whole blocks are told, and where they are by
// their FULL groups. Spaces without FULL groups, with a salt, or of a draft model are left
// out: routers could not tell what of them is restorable, or for whom.
//
// Pure functions.
#pragma once
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

#include "block/answer.h"
#include "block/events.h"

namespace prefixd::daemon {

// What routers need to know of a space.
struct PublishedSpace {
  bool published = false;
  std::string model;
  std::string adapter;  // its digest in hex, told as "lora_name"; empty = none
  uint32_t block_tokens = 0;
};
PublishedSpace PublishedSpaceOf(const block::SpaceIdentity& identity);

// Append the vLLM events that say the same. None for what is not told.
void AppendStored(const PublishedSpace& space, const block::StoredBlock& block,
                  const block::Tiers& before, std::vector<nlohmann::json>* events);
void AppendEvent(const PublishedSpace& space, const block::BlockEvent& event,
                 std::vector<nlohmann::json>* events);
nlohmann::json AllBlocksCleared();

// `unix_s`: seconds since 1970.
std::string EncodeBatch(double unix_s, const std::vector<nlohmann::json>& events);

}  // namespace prefixd::daemon
