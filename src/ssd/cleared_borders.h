// What was cleared: for each space, and for all together, the sequence up to which nothing counts.
//
// Borders decide what a restart may serve. RocksDB drops a damaged end of its log unnoticed, so
// they do not stand there but in two files of their own beside the database, `prefixd.borders` and
// `prefixd.borders.2`. Both hold the same, with a checksum. Save writes each anew, syncs it and
// renames it into place, the first one first. A change is acknowledged once both have it: whatever
// one of them suffers, the other knows all that was acknowledged.
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
  uint64_t all = 0;  // for every space, unknown ones included
  std::map<block::SpaceId, uint64_t> spaces{};

  bool Cover(const block::SpaceId& space, uint64_t sequence) const;
  void Merge(const ClearedBorders& more);
  uint64_t Last() const;  // the highest border
};

// Thread-safe. `write_mutex_` is held while the files are written, `mutex_` is not.
class BorderFiles {
 public:
  // kLost: every file that is there is damaged, both or the only one.
  enum class Found { kNone, kWhole, kOneDamaged, kLost };

  // `files` null: the machine's own file system. It must outlive this.
  BorderFiles(std::string directory, const FileLayer* files)
      : directory_(std::move(directory)), files_(files) {}

  // Reads the files. Call it once, before all others. FailedPrecondition if a later prefixd wrote
  // them, Unavailable if the disk gives neither.
  absl::StatusOr<Found> Load() PREFIXD_EXCLUDES(mutex_);

  ClearedBorders borders() const PREFIXD_EXCLUDES(mutex_);
  uint64_t epoch() const PREFIXD_EXCLUDES(mutex_);  // the last one noted
  // Adds borders. They count at once, and on disk with the next Save that succeeds. Forgets borders
  // of spaces below `oldest_sequence`, the first sequence on disk.
  void Add(const ClearedBorders& more, uint64_t oldest_sequence) PREFIXD_EXCLUDES(mutex_);
  void NoteEpoch(uint64_t epoch) PREFIXD_EXCLUDES(mutex_);
  // Writes everything so far into both files. After an error each file holds either its old content
  // or the new one.
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
  base::Mutex write_mutex_{"ClearedBorders::write_mutex_"};
  mutable base::Mutex mutex_;
  Content content_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t changes_ PREFIXD_GUARDED_BY(mutex_) = 0, saved_changes_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

}  // namespace prefixd::ssd
