// Says who owns each session that attached through the gate.
//
// Thread-safe.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

#include "base/mutex.h"
#include "block/ids.h"
#include "daemon/access/principals.h"

namespace prefixd::daemon {

class BoundSessions {
 public:
  struct Owner {
    std::string name, tenant;  // of its principal when it attached
    std::string spaces;        // the tenant of its spaces; `tenant` unless that is "*"
  };
  void Bind(block::SessionId session, Owner owner) PREFIXD_EXCLUDES(mutex_);
  void Unbind(block::SessionId session) PREFIXD_EXCLUDES(mutex_);
  std::optional<Owner> Find(block::SessionId session) const PREFIXD_EXCLUDES(mutex_);
  // Returns those whose principal `principals` does not have (any more).
  std::vector<std::pair<block::SessionId, Owner>> Lost(const Principals& principals,
                                                       absl::Time now) const
      PREFIXD_EXCLUDES(mutex_);

 private:
  mutable base::Mutex mutex_;
  absl::flat_hash_map<block::SessionId, Owner> owners_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::daemon
