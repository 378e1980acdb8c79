// One request explained: why it hit so far and no further, step by step, and where its time went.
//
// Pure functions.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "block/answer.h"

namespace prefixd::daemon {

struct StoryStep {
  std::string title, text;
  uint32_t tokens = 0;  // that are left after it, of those that were asked for
  bool loses = false;   // the hit ended or became shorter here
};
std::vector<StoryStep> StoryOf(const block::PastAnswer& past);

struct StoryPhase {
  std::string name, text;             // "match", "finding the pages and leasing them"
  uint64_t begin_us = 0, end_us = 0;  // since the request came
  bool by_worker = false;             // the worker reported it
};
// In the order of time; without those that took none.
std::vector<StoryPhase> PhasesOf(const block::PastAnswer& past);

}  // namespace prefixd::daemon
