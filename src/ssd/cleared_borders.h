// What was cleared: sequences up to which nothing counts any more, of each space and of all.
//
// They decide what a restart may serve, so they do not stand in RocksDB's log, whose damaged end is
// dropped unnoticed, but in two files of their own beside the database, `prefixd.borders` and
// `prefixd.borders.2`. Both hold the same; each is checked, written anew, synced and renamed into
// place, the first one first. A change is acknowledged once both have it: whatever one of them
// suffers, the other knows all that was acknowledged.
//
// A file, little-endian: u32 magic, u32 version, u32 store format version, u64 generation, u64
// epoch, u64 border of all, u32 n, n x {space id 32, u64 border}, u64 XXH3-64 of all before it.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "block/page_check.h"

namespace prefixd::ssd {

struct FileLayer;  // file_layer.h

struct ClearedBorders {
  uint64_t all = 0;  // of every space, those nobody knows included
  std::map<block::SpaceId, uint64_t> spaces{};

  bool Cover(const block::SpaceId& space, uint64_t sequence) const;
  void Merge(const ClearedBorders& more);
  uint64_t Last() const;  // the highest of all
};

// Thread-safe. `write_mutex_` is held while the files are written, `mutex_` is not.
class BorderFiles {
 public:
  // kLost: what is there is damaged, both files or the only one.
  enum class Found { kNone, kWhole, kOneDamaged, kLost };

  // `files` null: the machine's own file system; outlives this.
  BorderFiles(std::string directory, const FileLayer* files)
      : directory_(std::move(directory)), files_(files) {}

  // Once, before all others. FailedPrecondition when a later prefixd wrote them, Unavailable when
  // the disk gives neither.
  absl::StatusOr<Found> Load() PREFIXD_EXCLUDES(mutex_);

  ClearedBorders borders() const PREFIXD_EXCLUDES(mutex_);
  uint64_t epoch() const PREFIXD_EXCLUDES(mutex_);  // the last that was noted
  // They count at once, and on disk with the next Save that succeeds. Those below
  // `oldest_sequence`, the first that is on disk, are forgotten.
  void Add(const ClearedBorders& more, uint64_t oldest_sequence) PREFIXD_EXCLUDES(mutex_);
  void NoteEpoch(uint64_t epoch) PREFIXD_EXCLUDES(mutex_);
  // Everything so far into both files. On an error they hold what they held, or some of it.
  absl::Status Save() PREFIXD_EXCLUDES(mutex_) PREFIXD_EXCLUDES(write_mutex_);
  bool saved() const PREFIXD_EXCLUDES(mutex_);

 private:
  struct Content {
    uint64_t generation = 0, epoch = 0;
    ClearedBorders borders;
  };
  static std::string Encode(const Content& content);
  static absl::StatusOr<Content> Decode(const std::string& text);
  absl::Status Write(const std::string& name, const std::string& text) const;

  const std::string directory_;
  const FileLayer* const files_;
  base::Mutex write_mutex_;
  mutable base::Mutex mutex_;
  Content content_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t changes_ PREFIXD_GUARDED_BY(mutex_) = 0, saved_changes_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

}  // namespace prefixd::ssd
