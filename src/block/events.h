// Which blocks are stored and how that changes, as the index tells those who keep an index of their
// own. Plain values.
#pragma once
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "block/block_hash.h"
#include "block/tokens.h"

namespace prefixd::block {

// Where the pages are that make a block stored; admin.proto says which these are.
struct Tiers {
  bool ram = false, ssd = false;  // all of them are there
  bool mixed = false;             // neither tier has all of them, both together have
  bool operator==(const Tiers&) const = default;
};

// What is told of a block.
struct StoredState {
  bool stored = false;
  Tiers tiers{};
  uint64_t windows = 0;        // bit g: sliding group g has a page
  std::bitset<128> snapshots;  // bit k - 1: every state group has one after k tokens of the block
  bool operator==(const StoredState&) const = default;
};

struct StoredBlock {
  SpaceId space{};
  BlockHash hash{};
  BlockHash parent{};  // the space's root for the first block of a sequence
  uint32_t first_token = 0, tokens = 0;
  StoredState state{};
  // On request. Empty if the block left the tree meanwhile.
  std::vector<Token> token_ids{};
  std::vector<ContentKey> content{};
};

enum class EventKind : uint8_t { kStored = 1, kChanged = 2, kRemoved = 3, kCleared = 4 };

struct BlockEvent {
  EventKind kind = EventKind::kStored;
  StoredBlock block;  // its state: as it was right after the event; kCleared: only the space
  Tiers tiers_before{};
};

// What somebody who follows the events wants.
struct EventQuery {
  std::optional<SpaceId> space;  // nullopt = all
  bool with_tokens = false;
  std::optional<uint64_t> after;  // goes on behind this sequence if the index still can
};

// What comes next for them. First apply `blocks`, then `events`.
struct EventBatch {
  bool snapshot_begins = false;     // forget everything
  bool whole = false;               // what was told so far is what was stored at `sequence`
  bool loading = false;             // the index is
  uint64_t sequence = 0;            // of the last event that was told or passed over
  std::vector<StoredBlock> blocks;  // as they were when they were read
  std::vector<BlockEvent> events;
};

}  // namespace prefixd::block
