// What an Acquire does beside leasing: it waits for what others announced, takes the time of its
// phases, and is remembered.
#pragma once
#include <cstdint>
#include <utility>

#include "cache/cache.h"
#include "cache/context.h"
#include "cache/patience.h"
#include "cache/tables/tables.h"

namespace prefixd::cache {

class Phases {
 public:
  explicit Phases(const Context& context) : context_(context), begun_us_(context.Now()) {}
  // Microseconds since the last call.
  uint64_t Next() {
    const int64_t now = context_.Now();
    return static_cast<uint64_t>(now - std::exchange(begun_us_, now));
  }
  PhaseTimes times;

 private:
  const Context& context_;
  int64_t begun_us_;
};

// Waits while another worker has announced tokens of the request that are not stored yet, and the
// session goes on.
void WaitForAnnounced(Context& context, Sessions& sessions, const Request& request,
                      const index::MatchOptions& options, const Session& session,
                      const Patience& patience);

// Counts where the time of an Acquire went.
void CountPhases(AcquirePhases& phases, const Request& request, const PhaseTimes& times);

// Puts the answer into the history, under the request's id or one made up.
void Remember(const Context& context, Tables& tables, const Session& session,
              const SpaceInfo& space, const Request& request, const PhaseTimes& times,
              Acquired* acquired);

}  // namespace prefixd::cache
