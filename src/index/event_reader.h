// One listener's place in the events of an index: a snapshot, then every event, in order.
//
// Not thread-safe; several may read one index at the same time. Takes the index's mutex for one
// batch of blocks or events at a time. Keeps 8 bytes for each block that the snapshot still lacks.
#pragma once
#include <cstdint>
#include <vector>

#include "block/events.h"
#include "index/prefix_index.h"

namespace prefixd::index {

class EventReader {
 public:
  // `index` must outlive this. It begins to record, if nobody listened before. `at_once`: events,
  // and blocks, of a batch.
  EventReader(PrefixIndex* index, block::EventQuery query, uint32_t at_once = 256);

  // Returns what comes next. The first batch says at once whether a snapshot begins. Without blocks
  // and events, and with the `whole` and `sequence` of the batch before it, it says nothing new.
  block::EventBatch Next();
  // Whether Next has something new. Costs no lock.
  bool HasNext() const { return !told_ || !whole_ || index_->LastEvent() != at_; }

 private:
  // Snapshot: blocks are listed once and then read piece by piece, with the events in between. An
  // event carries a block's whole state, and each one behind a piece is told behind it: once all
  // pieces are told, and all events up to the last piece, the listener has what is stored then.
  void BeginSnapshot(block::EventBatch* batch);
  void AddBlocks(block::EventBatch* batch);

  PrefixIndex* const index_;
  const block::EventQuery query_;
  const uint32_t at_once_;
  uint64_t at_ = 0;             // the last event that was told or passed over
  uint64_t blocks_up_to_ = 0;   // the last event when the last piece was read
  std::vector<uint64_t> left_;  // blocks that the snapshot still lacks, the next one last
  bool told_ = false, whole_ = false;
};

}  // namespace prefixd::index
