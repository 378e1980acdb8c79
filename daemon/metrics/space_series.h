// Series by space, of bounded number: the spaces that ask for most have their own, and the rest is
// one, "other".
//
// Not thread-safe.
#pragma once
#include <cstddef>
#include <map>
#include <set>
#include <string>

#include "block/answer.h"
#include "daemon/metrics/families.h"

namespace prefixd::daemon {

// Returns the first 8 bytes of the id in hex, which prefixctl spaces shows too.
std::string SpaceLabel(const block::SpaceId& id);

class SpaceSeries {
 public:
  // `most`: so many spaces have series of their own.
  explicit SpaceSeries(size_t most) : most_(most) {}

  // Takes over what was counted since the last call. No counter of AddTo ever falls, except that of
  // a space that lost its series and got one again, which begins at 0. A space keeps its series
  // until another one has asked for a quarter more.
  void Update(const block::Stats& stats);
  // Adds the families of tokens and of what spaces hold, as of the last Update.
  void AddTo(Families* families) const;

 private:
  struct Held {
    uint64_t spaces = 0, blocks = 0, stored_tokens = 0, ram_bytes = 0, ssd_bytes = 0,
             dirty_bytes = 0;
  };
  struct Series {
    std::string label, model, tenant;
    uint32_t block_tokens = 0;
    block::SpaceTokens tokens;
    Held held;
  };
  std::set<block::SpaceId> Choose(const block::Stats& stats) const;
  void Advance(const block::SpaceSummary& space, Series* series);

  const size_t most_;
  std::map<block::SpaceId, block::SpaceTokens> seen_;  // of every space, as of the last Update
  std::map<block::SpaceId, Series> series_;
  block::SpaceTokens given_;  // what all series that ever were have counted
  block::SpaceTokens other_;
  Held other_held_;
};

}  // namespace prefixd::daemon
