// What sessions pinned, and until when.
#pragma once
#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "block/block_hash.h"
#include "cache/context.h"
#include "cache/tables/session.h"

namespace prefixd::cache {

// Thread-safe. It knows times and names; the index knows the pages.
class PinTable {
 public:
  explicit PinTable(Context* context) : context_(context) {}

  struct Entry {
    block::PinId in_index;
    SpacePtr space;
    block::BlockHash sequence{};  // of every token that was asked for; finds the pin again
    std::string worker;
    uint32_t tokens = 0;
    int64_t made_us = 0;
    int64_t ends_us = 0;  // 0 = never
  };

  void Add(block::PinId id, Entry entry) PREFIXD_EXCLUDES(mutex_);
  // nullopt: there is no such pin.
  std::optional<Entry> Remove(block::PinId id) PREFIXD_EXCLUDES(mutex_);
  // The pin of exactly this sequence; id 0 if there is none.
  std::pair<block::PinId, Entry> Find(const SpaceInfo& space,
                                      const block::BlockHash& sequence) const
      PREFIXD_EXCLUDES(mutex_);
  bool Renew(block::PinId id, int64_t ends_us) PREFIXD_EXCLUDES(mutex_);
  // Ends the pins whose time is up. Costs a look at one number if there are none.
  void Expire() PREFIXD_EXCLUDES(mutex_);
  // Forgets pins that a Clear ended in the index.
  void RemoveThoseOf(const SpaceInfo& space) PREFIXD_EXCLUDES(mutex_);
  std::vector<std::pair<block::PinId, Entry>> List() const PREFIXD_EXCLUDES(mutex_);

 private:
  static constexpr int64_t kNever = INT64_MAX;
  std::vector<Entry> TakeExpired(int64_t now_us) PREFIXD_EXCLUDES(mutex_);
  void FindNextEnd() PREFIXD_REQUIRES(mutex_);

  Context* const context_;
  mutable base::Mutex mutex_;
  std::map<block::PinId, Entry> entries_ PREFIXD_GUARDED_BY(mutex_);
  std::atomic<int64_t> next_end_us_{kNever};
};

}  // namespace prefixd::cache
