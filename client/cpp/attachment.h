// A session as sequences hold it: its ids and, if the daemon shares memory, the arena to read from
// and the staging memory to write to. Every reader of leased pages keeps its attachment, so their
// memory outlives session and daemon.
//
// Thread-safe.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "arena_mapping.h"
#include "base/mutex.h"
#include "block/ids.h"
#include "direct_channel.h"
#include "staging_memory.h"

namespace prefixd::client {

// Ids of one session are void in another.
struct Session {
  uint64_t id = 0;
  uint64_t epoch = 0;  // of one life of the daemon
  bool operator==(const Session&) const = default;
};

class Attachment {
 public:
  struct Parts {
    Session session{};
    std::shared_ptr<const ArenaMapping> arena{};  // null if pages travel by Fetch
    std::shared_ptr<StagingMemory> staging{};     // null if pages travel by Put
    std::shared_ptr<DirectChannel> direct{};      // null if all calls go by gRPC
    std::string why_no_arena{};
    // The lease on everything that the session before held, if this session resumed it; else none.
    block::LeaseId resumed_lease{};
  };
  // Gives a lease of a session back. May be called as long as any attachment lives.
  using ReleaseLease = std::function<void(const Session&, block::LeaseId)>;
  Attachment(Parts parts, ReleaseLease release)
      : parts_(std::move(parts)), release_(std::move(release)) {}
  // Nobody reads any more what this session held: gives back the lease of the session that took it
  // over.
  ~Attachment();
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;

  const Session& session() const { return parts_.session; }
  const std::shared_ptr<const ArenaMapping>& arena() const { return parts_.arena; }
  const std::shared_ptr<StagingMemory>& staging() const { return parts_.staging; }
  const std::shared_ptr<DirectChannel>& direct() const { return parts_.direct; }
  const std::string& why_no_arena() const { return parts_.why_no_arena; }
  block::LeaseId resumed_lease() const { return parts_.resumed_lease; }

  // Notes that `next` holds, by its resumed_lease(), what this session held. Call it once.
  void ContinuedBy(std::shared_ptr<Attachment> next) PREFIXD_EXCLUDES(mutex_);

 private:
  const Parts parts_;
  const ReleaseLease release_;
  base::Mutex mutex_;
  // Kept as long as this attachment: what the next session resumed may be resumed again by the one
  // after it.
  std::shared_ptr<Attachment> next_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::client
