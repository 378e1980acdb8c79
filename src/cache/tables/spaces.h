// The table of spaces: an identity becomes a handle, and an empty space that nobody has open is
// forgotten. Spaces come with every user's salt and would else stay for ever.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "cache/context.h"
#include "cache/tables/session.h"
#include "cache/tables/worth.h"

namespace prefixd::cache {

// Thread-safe.
class Spaces {
 public:
  Spaces(Context* context, Worth* worth);

  // --- spaces.cc ---
  // Opens the space for the session. InvalidArgument for an identity that cannot be served;
  // ResourceExhausted if there is no memory for one more.
  absl::StatusOr<OpenedSpace> Open(const SessionPtr& session, const block::SpaceIdentity& identity)
      PREFIXD_EXCLUDES(mutex_);
  // Adds a space that an earlier daemon knew; `saved`: its identity is on SSD.
  void AddEarlier(const block::SpaceIdentity& identity, bool saved) PREFIXD_EXCLUDES(mutex_);
  SpacePtr Find(const block::SpaceId& id) const PREFIXD_EXCLUDES(mutex_);  // null: unknown
  // NotFound unless this session opened it. Counts as a use.
  absl::StatusOr<SpacePtr> Find(const Session& session, block::SpaceHandle handle) const
      PREFIXD_EXCLUDES(mutex_);
  bool IsOpen(const Session& session, block::SpaceHandle handle) const PREFIXD_EXCLUDES(mutex_);
  std::vector<SpacePtr> All() const PREFIXD_EXCLUDES(mutex_);  // by id
  // Every space with what the index has of it.
  std::vector<block::SpaceSummary> List() const PREFIXD_EXCLUDES(mutex_);

  // Returns the memory of all known spaces and, beside them, of this one.
  uint64_t MemoryWith(const block::SpaceIdentity& identity) const;

  // --- their identities on SSD (forget_spaces.cc); the store must be open ---
  absl::Status Save(const SpaceInfo& space);
  // Saves the spaces of these blocks that are not saved yet, and deletes forgotten ones.
  absl::Status SaveThoseOf(std::span<const index::SpillBlock> blocks) PREFIXD_EXCLUDES(mutex_);

 private:
  absl::Status CheckServable(const block::SpaceIdentity& identity) const;
  SpacePtr Add(const block::SpaceIdentity& identity, bool* created) PREFIXD_EXCLUDES(adding_mutex_)
      PREFIXD_EXCLUDES(mutex_);
  // Finds, among the spaces that were opened last and some more, the one with the fewest fields
  // that differ.
  void FindNearest(const SpaceInfo& space, OpenedSpace* opened) const PREFIXD_EXCLUDES(mutex_);
  // Makes room for what one more space costs: closes those that the session used longest ago, if it
  // has more open than it leaves to others, and forgets empty ones. ResourceExhausted: there is
  // none.
  absl::Status MakeRoom(const SessionPtr& session, uint64_t bytes) PREFIXD_EXCLUDES(mutex_);
  // Looks at so many of the spaces, in turn, and forgets those that are empty and open nowhere.
  void ForgetEmpty(size_t looks) PREFIXD_EXCLUDES(adding_mutex_) PREFIXD_EXCLUDES(mutex_);
  bool Forget(SpacePtr space) PREFIXD_REQUIRES(adding_mutex_) PREFIXD_EXCLUDES(mutex_);
  uint64_t MostBytes() const { return context_->index_share_bytes.load() / 2; }

  Context* const context_;
  Worth* const worth_;
  std::atomic<uint64_t> known_bytes_{0};  // memory_bytes of all

  // Held while a space is added or forgotten; taken before mutex_.
  base::Mutex adding_mutex_{"Spaces::adding_mutex_"};
  mutable base::Mutex mutex_;
  std::map<block::SpaceId, SpacePtr> by_id_ PREFIXD_GUARDED_BY(mutex_);
  std::deque<std::weak_ptr<const SpaceInfo>> recent_ PREFIXD_GUARDED_BY(mutex_);  // newest first
  std::vector<block::SpaceId> forgotten_ PREFIXD_GUARDED_BY(mutex_);  // their identity is on SSD
  block::SpaceId forget_cursor_ PREFIXD_GUARDED_BY(mutex_){};  // the last one that was looked at
  mutable uint64_t uses_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

}  // namespace prefixd::cache
