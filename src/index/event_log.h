// The last changes of what is stored, numbered from 1 without gaps.
//
// Internal to index/. Not thread-safe; guarded by the index's mutex.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>

#include "block/events.h"

namespace prefixd::index {

class EventLog {
 public:
  // A change, without tokens: those are read from the block when the change is told.
  struct Entry {
    block::EventKind kind = block::EventKind::kStored;
    uint64_t node_id = 0;
    block::SpaceId space{};
    block::BlockHash hash{}, parent{};
    uint32_t first_token = 0, tokens = 0;
    block::StoredState state{};
    block::Tiers tiers_before{};
  };

  // Keeps the last `most` events, 1 at least.
  // `last`: the last event's number, for those without the mutex.
  EventLog(uint64_t most, std::atomic<uint64_t>* last)
      : most_(most == 0 ? 1 : most), last_(*last) {}

  bool recording() const { return recording_; }
  void Begin() { recording_ = true; }  // for good
  // Requires: recording().
  void Add(const Entry& entry) {
    if (entries_.size() == most_) entries_.pop_front();
    entries_.push_back(entry);
    last_.fetch_add(1, std::memory_order_release);
  }
  uint64_t last() const { return last_.load(std::memory_order_acquire); }  // 0: none yet
  // Whether every event after this sequence is there, and the sequence was given out.
  bool HasAfter(uint64_t sequence) const {
    return recording_ && sequence <= last() && last() - sequence <= entries_.size();
  }
  // Requires: HasAfter(sequence - 1), sequence <= last().
  const Entry& At(uint64_t sequence) const {
    return entries_[entries_.size() - 1 - (last() - sequence)];
  }

 private:
  const uint64_t most_;
  bool recording_ = false;
  std::deque<Entry> entries_;
  std::atomic<uint64_t>& last_;
};

}  // namespace prefixd::index
