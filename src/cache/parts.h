// The parts of the cache, wired: who knows whom, which threads there are, and in which order they
// start and stop. Internal to the room.
#pragma once
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"

#include "cache/context.h"
#include "cache/far/far.h"
#include "cache/far/fetcher.h"
#include "cache/far/finder.h"
#include "cache/far/space_board.h"
#include "cache/far/writer.h"
#include "cache/load/loader.h"
#include "cache/load/refused.h"
#include "cache/load/watcher.h"
#include "cache/room/page_records.h"
#include "cache/room/room.h"
#include "cache/room/spill_demand.h"
#include "cache/start/index_loader.h"
#include "cache/store/dropper.h"
#include "cache/store/segments.h"
#include "cache/store/spiller.h"
#include "cache/store/tier.h"
#include "cache/tables/tables.h"
#include "cache/verbs/verify.h"

namespace prefixd::cache {

class Parts {
 public:
  explicit Parts(std::unique_ptr<Context> opened);  // Context::Open has succeeded
  ~Parts();                                         // stops the threads
  // Opens the SSD tier, loads the index and starts the threads.
  absl::Status Start();

 private:
  const std::unique_ptr<Context> owned_;  // outlives all others

 public:
  Context& context;
  Tables tables;
  SpillDemand spill_demand;
  PageRecords records;
  Room room;
  Refused refused;
  Watcher watcher;
  Loader loader;
  Far far;
  SpaceBoard space_board;
  Finder finder;
  Fetcher fetcher;
  Writer writer;
  Dropper dropper;
  Segments segments;
  Spiller spiller;
  Tier tier;
  IndexLoader index_loader;
  Verifier verifier;

 private:
  std::vector<std::thread> threads_;
  std::thread tier_thread_;  // stops first: it starts the others' work
};

}  // namespace prefixd::cache
