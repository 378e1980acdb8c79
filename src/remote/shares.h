// How many bytes may be on their way at a time, to and from one server and all together: the rest
// would lie in buffers of the server, where it pushes out what the server stores.
#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <optional>

#include "base/mutex.h"
#include "os/wake.h"

namespace prefixd::remote {

// Thread-safe. Who has to wait waits in line, with poll(), and not for somebody who waits too:
// nobody waits for a second share of one server.
class Shares {
 public:
  struct Most {
    uint64_t of_node = uint64_t{4} << 20;
    uint64_t of_store = uint64_t{64} << 20;
  };
  explicit Shares(const Most& most) : most_(most) {}

  // A share of one node, from the constructor to the destructor. More than the node's or the
  // store's bytes are granted when nothing else is on its way there.
  class Share {
   public:
    Share(Shares* shares, const void* node, uint64_t bytes);
    ~Share();
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    bool granted() const;
    // Readable once it is granted; -1: it was at once.
    int fd() const { return granted_event_.has_value() ? granted_event_->fd() : -1; }

   private:
    friend class Shares;
    Shares* const shares_;
    const void* const node_;
    const uint64_t bytes_;
    bool granted_ = false;                   // guarded by the mutex of the Shares
    std::optional<os::Wake> granted_event_;  // if it had to wait
  };

  uint64_t InFlight(const void* node) const PREFIXD_EXCLUDES(mutex_);
  uint64_t of_node() const { return most_.of_node; }

 private:
  void GrantWaiting() PREFIXD_REQUIRES(mutex_);

  const Most most_;
  mutable base::Mutex mutex_;
  std::map<const void*, uint64_t> in_flight_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t total_ PREFIXD_GUARDED_BY(mutex_) = 0;
  std::list<Share*> waiting_ PREFIXD_GUARDED_BY(mutex_);  // in line
};

}  // namespace prefixd::remote
