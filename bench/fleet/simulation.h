// A fleet of hosts that share one tier, on paper: blocks, bytes and times, no servers and no pages.
//
// What decides is the daemon's own where it can be had: cache::WriteBudget, cache::LoadModel, and
// the constants of cache/far. A request finds its leading blocks in the RAM of its host, asks the
// shared tier for those behind them, loads what pays and computes the rest. Once it is computed,
// its whole path is offered to the shared tier, parents first. Names and records, about one byte in
// a thousand, are not counted.
//
// Plain values; one thread. The same calls give the same result.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <span>
#include <vector>

#include "base/clock.h"
#include "bench/fleet/recent_blocks.h"
#include "bench/fleet/router.h"
#include "cache/load/load_model.h"
#include "cache/write_budget.h"

namespace prefixd::bench {

struct FleetShape {
  uint32_t hosts = 8;
  uint32_t block_tokens = 512;
  uint64_t bytes_per_token = 69'632;           // Llama-3-8B's, 8 bits a value
  uint64_t ram_bytes = uint64_t{64} << 30;     // of a host, for pages
  uint64_t far_bytes = 10'000'000'000'000;     // of the shared tier
  double host_bytes_per_s = 25e9 / 8;          // each way, of a host
  double storage_bytes_per_s = 40 * 25e9 / 8;  // each way, of all storage nodes
  double prefill_tokens_per_s = 6'000;         // of a host
  uint64_t block_bytes() const { return bytes_per_token * block_tokens; }
};

// What holds the network's load down. The limits are of one host.
struct FleetRules {
  bool far = true;           // there is a shared tier
  bool write_budget = true;  // beyond it only what is likely to be used again is written
  bool cost = true;          // what loads slower than it is computed is computed
  bool exists_first = true;  // what is there is not written again
  // A host forgets that a block is there once it was told that it is not. The daemon believes in
  // what it wrote or saw for an hour.
  bool forgets_absent = false;
  uint64_t write_bytes_per_s = 25'000'000;
  std::chrono::seconds write_window{600};
  uint32_t shallow_tokens = 3072;
  Routing routing = Routing::kPrefix;
};

struct FleetResult {
  uint64_t requests = 0;
  uint64_t local = 0, far = 0, none = 0;  // tokens: from RAM, from the shared tier, computed
  uint64_t read_bytes = 0, written_bytes = 0;
  uint64_t late = 0;           // loads that were given up
  uint64_t not_worth = 0;      // tokens that were found and not loaded
  uint64_t written_again = 0;  // bytes of blocks that were there
  double first_token_us = 0;   // sum: loading, then computing
  int64_t duration_us = 0;     // from the first request to the last
  uint64_t tokens() const { return local + far + none; }
};

// A direction of a network: what is asked for waits until all before it went.
class FleetLink {
 public:
  explicit FleetLink(double bytes_per_s) : bytes_per_us_(bytes_per_s / 1e6) {}
  double WaitAt(int64_t now_us) const;
  // Returns when the last byte has gone, in us from now.
  double Send(int64_t now_us, uint64_t bytes);

 private:
  const double bytes_per_us_;
  double free_us_ = 0;
};

class Fleet {
 public:
  Fleet(const FleetShape& shape, const FleetRules& rules, uint64_t seed);
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  // Requires: `at_us` is not before that of the call before.
  void Serve(int64_t at_us, std::span<const FleetBlock> path);
  const FleetResult& result() const { return result_; }

 private:
  struct Host;

  size_t Found(Host& host, std::span<const FleetBlock> missing);
  size_t WhatPays(const Host& host, size_t found) const;
  // Returns how many of the blocks came, and adds to `us` what they took.
  size_t Load(Host& host, size_t blocks, double* us);
  void LearnPresent(Host& host, std::span<const FleetBlock> path);
  bool MayWrite(Host& host, FleetBlock block, size_t place);
  void Write(Host& host, std::span<const FleetBlock> path);
  // Moves the clock, and writes what was computed by then.
  void AdvanceTo(int64_t at_us);

  struct Offer {
    int64_t due_us = 0;
    uint32_t host = 0;
    std::vector<FleetBlock> path;
    bool operator>(const Offer& other) const { return due_us > other.due_us; }
  };

  const FleetShape shape_;
  const FleetRules rules_;
  base::FakeClock clock_;
  Router router_;
  RecentBlocks far_;
  FleetLink reads_, writes_;  // of the storage nodes
  std::vector<std::unique_ptr<Host>> hosts_;
  std::priority_queue<Offer, std::vector<Offer>, std::greater<>> offers_;
  FleetResult result_;
  int64_t begun_us_ = 0, now_us_ = 0;  // of requests and offers
};

}  // namespace prefixd::bench
