// An index built from events alone, as a router has it.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "index/event_reader.h"

namespace prefixd::index {

// What is told of a block beside its names.
struct Told {
  block::BlockHash parent{};
  uint32_t first_token = 0, tokens = 0;
  block::StoredState state{};
  std::vector<block::Token> token_ids;
  bool operator==(const Told&) const = default;
};
using NameInSpace = std::pair<block::SpaceId, block::BlockHash>;
using ToldBlocks = std::map<NameInSpace, Told>;

inline Told ToldOf(const block::StoredBlock& block) {
  return {block.parent, block.first_token, block.tokens, block.state, block.token_ids};
}

class EventFollower {
 public:
  // Reads so few blocks and events at once that much changes while a snapshot comes.
  static constexpr uint32_t kAtOnce = 7;
  explicit EventFollower(PrefixIndex* index) : index_(index) {}

  // Begins to listen, again if it did. `resume`: goes on where it stood, if that was whole.
  void Connect(bool resume) {
    block::EventQuery query{.space = {}, .with_tokens = true, .after = {}};
    if (resume && whole_) query.after = sequence_;
    reader_ = std::make_unique<EventReader>(index_, query, kAtOnce);
    first_ = true;
  }
  void Disconnect() { reader_.reset(); }
  bool connected() const { return reader_ != nullptr; }
  bool up_to_date() const { return reader_ != nullptr && whole_ && !reader_->HasNext(); }

  void ReadOne() {
    const block::EventBatch batch = reader_->Next();
    if (batch.snapshot_begins) {
      blocks_.clear();
      snapshots_ += 1;
    } else {
      resumed_ += first_ ? 1 : 0;
      EXPECT_EQ(batch.sequence, sequence_ + batch.events.size()) << "a gap in the sequence";
    }
    first_ = false;
    for (const block::StoredBlock& block : batch.blocks) {
      blocks_[{block.space, block.hash}] = ToldOf(block);
    }
    for (const block::BlockEvent& event : batch.events) Apply(event);
    sequence_ = batch.sequence;
    whole_ = batch.whole;
  }
  void ReadAll() {
    while (!up_to_date()) ReadOne();
  }

  const ToldBlocks& blocks() const { return blocks_; }
  uint64_t sequence() const { return sequence_; }
  bool whole() const { return whole_; }
  uint64_t snapshots() const { return snapshots_; }
  uint64_t resumed() const { return resumed_; }
  uint64_t events(block::EventKind kind) const {
    const auto found = kinds_.find(kind);
    return found == kinds_.end() ? 0 : found->second;
  }

 private:
  void Apply(const block::BlockEvent& event) {
    ++kinds_[event.kind];
    if (event.kind == block::EventKind::kCleared) {
      std::erase_if(blocks_,
                    [&](const auto& entry) { return entry.first.first == event.block.space; });
    } else if (event.kind == block::EventKind::kRemoved) {
      blocks_.erase({event.block.space, event.block.hash});
    } else {
      blocks_[{event.block.space, event.block.hash}] = ToldOf(event.block);
    }
  }

  PrefixIndex* const index_;
  std::unique_ptr<EventReader> reader_;
  ToldBlocks blocks_;
  std::map<block::EventKind, uint64_t> kinds_;
  uint64_t sequence_ = 0, snapshots_ = 0, resumed_ = 0;
  bool whole_ = false, first_ = false;
};

// All that is stored, asked at once.
inline ToldBlocks DumpOf(const PrefixIndex& index) {
  ToldBlocks blocks;
  for (const block::StoredBlock& block : index.ReadStored(index.ListStored({}), true).blocks) {
    blocks[{block.space, block.hash}] = ToldOf(block);
  }
  return blocks;
}

}  // namespace prefixd::index
