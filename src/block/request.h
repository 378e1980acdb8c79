// What the cache is asked for. wire/ reads these structs from messages and cache/ serves them.
// Plain values.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "block/answer.h"
#include "block/ids.h"
#include "block/tokens.h"

namespace prefixd::block {

struct Request {
  SpaceHandle space;
  std::vector<Token> tokens;
  std::vector<ContentKey> content;
  uint32_t max_tokens = kNoLimit;
  std::vector<uint32_t> groups;    // empty = all
  std::vector<uint64_t> readable;  // mask of rungs for each group; empty = all
  bool causal_content = false;
  std::string request_id = {};  // for the log
  bool table = false;           // Acquire: an answer in Acquired.table is understood
  // What the worker computes by itself: a hit that takes longer to load is shortened to where it
  // pays. 0 = unknown.
  double prefill_tokens_per_s = 0;
  uint64_t remote_us = 0;  // what asking other hosts took, for the history
  // How long to wait while somebody else has announced tokens of this request. 0 = not at all.
  std::chrono::milliseconds wait_pending{0};
};

struct Released {
  LeaseId lease;
  uint32_t used_tokens = 0;
  uint64_t first_token_us = 0;
  uint64_t load_us = 0;  // measured by the worker; teaches the load-time estimate
  // What the tokens would have cost; 0 = the lookup's, else the last that was told in this space.
  double prefill_tokens_per_s = 0;
};

struct ReserveRequest {
  SpaceHandle space;
  std::vector<Token> tokens;
  std::vector<ContentKey> content;
  std::vector<uint32_t> groups;
  std::vector<uint64_t> writable;
  bool seeds = false;                    // fill in BlockPlan::seeds
  std::vector<uint32_t> turn_ends = {};  // where later requests may go on, as far as is known
};

// A page that stands in the session's staging memory.
struct StagedPlace {
  uint32_t first_token = 0;  // of its block
  uint32_t group = 0;
  uint32_t rung = 0;
  uint64_t offset = 0;  // in the staging memory, a multiple of 128
};

struct CommitRequest {
  ReservationId reservation;
  uint32_t tokens = 0;  // a block border of the plan or its end
  bool sequence_end = false;
  std::vector<uint32_t> ends = {};       // further ends <= tokens
  std::vector<StagedPlace> staged = {};  // pages that were not Put
  bool lease = false;  // the writer wants to read the published pages in the arena
  // kSsd: the answer comes once all blocks up to `tokens` are on SSD; CommitAnswer.durability says
  // whether they are.
  Durability durability = Durability::kRam;
};

struct FetchRequest {
  LeaseId lease;
  std::vector<uint32_t> groups;
  uint32_t from_token = 0;
  // A whole page of one piece may come with the check that is kept of it, whose seed is its name's,
  // instead of a sum of what stands in memory now.
  bool seeded_sums = false;
};

}  // namespace prefixd::block
