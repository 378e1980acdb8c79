// What each principal has in use at a time. Kept by name: entries of the access file with one name
// share it.
//
// Thread-safe. What is held may outlive this.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"

namespace prefixd::daemon {

class Usage {
 public:
  enum class Kind { kSessions, kLeaseBytes, kBytesInFlight };
  // Some of one kind, given back with the last copy.
  using Hold = std::shared_ptr<void>;
  struct Taken {
    Hold hold;            // null: `name` would have more than `most`
    uint64_t in_use = 0;  // that it had before
  };

  // Takes `amount` of `kind` for `name`. `most` 0: without limit.
  Taken Take(Kind kind, const std::string& name, uint64_t amount, uint64_t most)
      PREFIXD_EXCLUDES(mutex_);

 private:
  static constexpr size_t kKinds = 3;
  using Gauges = std::array<std::atomic<uint64_t>, kKinds>;
  std::shared_ptr<Gauges> GaugesOf(const std::string& name) PREFIXD_EXCLUDES(mutex_);

  base::Mutex mutex_;
  std::map<std::string, std::weak_ptr<Gauges>> gauges_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::daemon
