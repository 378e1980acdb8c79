#include "index/event_reader.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace prefixd::index {

EventReader::EventReader(PrefixIndex* index, block::EventQuery query, uint32_t at_once)
    : index_(index), query_(std::move(query)), at_once_(at_once) {
  at_ = index_->RecordEvents();
}

void EventReader::BeginSnapshot(block::EventBatch* batch) {
  batch->snapshot_begins = true;
  whole_ = false;
  at_ = blocks_up_to_ = index_->LastEvent();  // before the blocks are listed
  left_ = index_->ListStored(query_.space);
  std::ranges::reverse(left_);
}

void EventReader::AddBlocks(block::EventBatch* batch) {
  const size_t count = std::min<size_t>(at_once_, left_.size());
  std::vector<uint64_t> piece(left_.end() - static_cast<std::ptrdiff_t>(count), left_.end());
  std::ranges::reverse(piece);
  StoredRead read = index_->ReadStored(piece, query_.with_tokens);
  batch->blocks = std::move(read.blocks);
  blocks_up_to_ = read.sequence;
  left_.resize(left_.size() - count);
  if (left_.empty()) left_.shrink_to_fit();
}

block::EventBatch EventReader::Next() {
  block::EventBatch batch;
  if (!std::exchange(told_, true)) {
    const bool goes_on = query_.after.has_value() && index_->HasEventsAfter(*query_.after);
    if (goes_on) {
      at_ = *query_.after;
      whole_ = true;
    } else {
      BeginSnapshot(&batch);
    }
  }
  std::optional<EventsRead> read = index_->ReadEvents(at_, at_once_, query_);
  if (!read.has_value()) {
    BeginSnapshot(&batch);
    const EventsRead none{.events = {}, .last = at_};
    read = index_->ReadEvents(at_, at_once_, query_).value_or(none);
  }
  at_ = read->last;
  batch.sequence = at_;
  batch.loading = read->loading;
  batch.events = std::move(read->events);
  if (!left_.empty()) AddBlocks(&batch);
  whole_ = whole_ || (left_.empty() && at_ >= blocks_up_to_);
  batch.whole = whole_;
  return batch;
}

}  // namespace prefixd::index
