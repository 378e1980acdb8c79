// Tells other hosts which spaces this one has, and reads which they have: for people who ask why
// hosts do not share. Nothing else depends on it.
//
// In the store it is a board (remote/remote_store.h) of sealed notes (remote/note.h), a new one
// every few hours, so that what nobody has any more goes away. A space stands on it once, by the
// host that told of it last, and without its salt: spaces that differ in nothing else are one.
//
// Thread-safe.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "cache/cache.h"
#include "cache/context.h"
#include "cache/far/far.h"

namespace prefixd::cache {

class SpaceBoard {
 public:
  static constexpr std::chrono::hours kBoardHours{6};  // of one board; the one before is read too
  static constexpr int64_t kToldUs = 1'800'000'000;    // then it is told again
  static constexpr int64_t kLookUs = 5'000'000;        // how often Step looks
  static constexpr int64_t kRefusedUs = 60'000'000;    // until it tries again

  static constexpr size_t kMostSpaces = 256;  // that one host tells of, opened last

  SpaceBoard(Context* context, Far* far) : context_(context), far_(far) {}

  // A worker opened it: it is told of from now on, at the next Step.
  void Opened(const block::SpaceIdentity& identity) PREFIXD_EXCLUDES(mutex_);
  // Tells of what was not told of for a while. Does nothing at most times.
  void Step(base::Deadline deadline) PREFIXD_EXCLUDES(mutex_);
  // The spaces that hosts told of, this one too, newest first, each once. What cannot be read, or
  // is too old, is left out and counted. The store's error, if it does not answer.
  absl::StatusOr<std::vector<ToldSpace>> Read(base::Deadline deadline);
  uint64_t MemoryBytes() const PREFIXD_EXCLUDES(mutex_);  // estimated

 private:
  // Returns false if the store did not take it.
  bool Tell(const block::SpaceIdentity& identity, base::Deadline deadline);
  // The next one that was not told of for a while; nullopt: there is none.
  std::optional<block::SpaceIdentity> NextUntold() PREFIXD_EXCLUDES(mutex_);
  int64_t BoardNow() const;
  std::string BoardName(int64_t board) const;
  remote::ChainName NoteName(int64_t board, const block::SpaceId& space) const;
  bool ReadNote(int64_t board, const remote::Post& post, ToldSpace* told) const;

  Context* const context_;
  Far* const far_;
  struct Known {
    block::SpaceIdentity identity;
    int64_t opened_us = 0;
    std::optional<int64_t> told_us{};
  };
  mutable base::Mutex mutex_;
  std::map<block::SpaceId, Known> known_ PREFIXD_GUARDED_BY(mutex_);  // by the id without salt
  bool has_new_ PREFIXD_GUARDED_BY(mutex_) = false;
  int64_t next_look_us_ PREFIXD_GUARDED_BY(mutex_) = 0;
  int64_t refused_until_us_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

// The identity as it is told: without its salt, which separates users and is theirs.
block::SpaceIdentity WithoutSalt(block::SpaceIdentity identity);

}  // namespace prefixd::cache
