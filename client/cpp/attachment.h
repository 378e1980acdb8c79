// One session as sequences hold it: its ids and, where the daemon shares memory, the arena to read
// and the staging to write. Everything that reads leased pages keeps its attachment; so their
// memory stays although session and daemon are long gone.
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
#include "staging_memory.h"

namespace prefixd::client {

// Ids given under one session are void under another.
struct Session {
  uint64_t id = 0;
  uint64_t epoch = 0;  // of the daemon's life
  bool operator==(const Session&) const = default;
};

class Attachment {
 public:
  struct Parts {
    Session session{};
    std::shared_ptr<const ArenaMapping> arena{};  // null: pages travel by Fetch
    std::shared_ptr<StagingMemory> staging{};     // null: pages travel by Put
    std::string why_no_arena{};
    // What the session before this one held, when this one goes on with it.
    block::LeaseId resumed_lease{};
  };
  // `release` gives a lease of a session back; may be called as long as anybody holds this.
  using ReleaseLease = std::function<void(const Session&, block::LeaseId)>;
  Attachment(Parts parts, ReleaseLease release)
      : parts_(std::move(parts)), release_(std::move(release)) {}
  // Whoever read what this session held has ended: the session that took it over lets it go.
  ~Attachment();
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;

  const Session& session() const { return parts_.session; }
  const std::shared_ptr<const ArenaMapping>& arena() const { return parts_.arena; }
  const std::shared_ptr<StagingMemory>& staging() const { return parts_.staging; }
  const std::string& why_no_arena() const { return parts_.why_no_arena; }
  block::LeaseId resumed_lease() const { return parts_.resumed_lease; }

  // `next` holds by its resumed_lease() what this one held. Once.
  void ContinuedBy(std::shared_ptr<Attachment> next) PREFIXD_EXCLUDES(mutex_);

 private:
  const Parts parts_;
  const ReleaseLease release_;
  base::Mutex mutex_;
  // Kept as long as this is: what the next session resumed is in turn resumed by the one after it.
  std::shared_ptr<Attachment> next_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::client
