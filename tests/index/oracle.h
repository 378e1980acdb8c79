// The index's rules once more over a plain map of whole prefixes: no blocks inside blocks, no
// hashes, no orders, no pointers from child to parent. Slow and easy to believe.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "index/prefix_index.h"

namespace prefixd::index {

// One position: token, and which place of which item stands under it (0 = none).
struct Place {
  block::Token token = 0;
  uint32_t item = 0;
  uint32_t position = 0;
  auto operator<=>(const Place&) const = default;
};
using Prefix = std::vector<Place>;

// A prefix as the index takes it.
struct PrefixSequence {
  explicit PrefixSequence(const Prefix& prefix);
  block::SequenceView view() const { return {tokens, content}; }
  std::vector<block::Token> tokens;
  std::vector<block::ContentKey> content;
};
size_t Common(const Prefix& a, const Prefix& b);
inline Prefix Cut(const Prefix& prefix, size_t count) {
  return {prefix.begin(), prefix.begin() + static_cast<ptrdiff_t>(count)};
}

using PageKey = std::pair<uint32_t, uint32_t>;  // group, rung
struct ModelPage {
  PageState state = PageState::kGone;
  block::Extent extent{};
  uint64_t sequence = 0;
  uint64_t check = 0;
  int holders = 0;
  uint64_t slots = 0;               // of holders since there was none
  std::vector<uint64_t> condemned;  // offsets of bad copies that wait for the last holder
};
struct ModelBlock {
  Prefix prefix;  // of the whole sequence up to the block's end
  std::map<PageKey, ModelPage> pages;
  int pins = 0;
  bool in_tree = true;
  uint64_t serial = 0;               // of a full block
  std::set<uint64_t> other_serials;  // by which records may name it now
  bool present() const;
  bool Has(uint64_t of_record) const {
    return serial == of_record || other_serials.contains(of_record);
  }
};
using BlockPtr = std::shared_ptr<ModelBlock>;

using Wanted = std::map<uint32_t, uint64_t>;  // group -> usable rungs

class Oracle {
 public:
  Oracle(uint32_t block_tokens, std::vector<uint32_t> rungs)
      : block_tokens_(block_tokens), rungs_(std::move(rungs)) {}

  struct Answer {
    uint32_t matched = 0, restorable = 0;  // before max_tokens and content
    block::MatchKind kind = block::MatchKind::kNone;
    block::EndReason ended_by = block::EndReason::kNeverStored;  // as if there were no ghosts
    uint32_t diverged = 0;
  };
  Answer Match(const Prefix& request, const Wanted& wanted) const;
  Wanted WantedOf(const Selection& selection) const;

  BlockPtr Find(const Prefix& prefix) const;
  size_t BaseOf(const Prefix& prefix) const {
    return (prefix.size() - 1) / block_tokens_ * block_tokens_;
  }
  bool HasChildren(const ModelBlock& block) const;
  bool HasRamBelow(const ModelBlock& block) const;
  static bool Serves(const ModelBlock& block, const Wanted& wanted);
  // Some block of the same place holds all of `prefix` and serves.
  bool IsPresent(const Prefix& prefix, const Wanted& wanted) const;
  // The block of the tree that begins at `base` and holds `prefix` has the finest wanted page of
  // every group in RAM.
  bool InRamUpTo(const Prefix& prefix, size_t base, const Wanted& wanted) const;
  bool SomeExtending(const Prefix& prefix, bool with_pages) const;
  bool Duplicate(const Prefix& prefix, const std::set<PageKey>& pages, bool longer_only) const;

  BlockPtr Insert(const Prefix& prefix);
  void Supersede(const BlockPtr& block);
  void Remove(BlockPtr block);  // out of the tree, with the ends nobody covers any more
  void Settle(BlockPtr block);  // as the index does: frees and prunes
  void Gone(ModelPage& page);   // expects its extent to come back
  void Take(const BlockPtr& block, const PageKey& key, uint32_t slot);  // a lease does
  void Drop(const BlockPtr& block, const PageKey& key);
  void AddEnd(const Prefix& prefix) { ends_.insert(prefix); }

  // The page whose bytes stand in this extent or under this sequence; nullptr when there is none.
  const ModelBlock* OwnerOf(const block::Extent& extent) const;

  const std::map<Prefix, BlockPtr>& blocks() const { return blocks_; }
  const std::set<Prefix>& ends() const { return ends_; }
  std::multiset<uint64_t>& freed() { return freed_; }
  std::map<uint64_t, std::pair<BlockPtr, PageKey>>& by_extent() { return by_extent_; }
  uint32_t block_tokens() const { return block_tokens_; }

 private:
  // Blocks of the tree whose prefix begins with `prefix`: they stand together in the map.
  std::vector<BlockPtr> Extending(const Prefix& prefix) const;

  const uint32_t block_tokens_;
  const std::vector<uint32_t> rungs_;
  std::map<Prefix, BlockPtr> blocks_;  // of the tree
  std::set<Prefix> ends_;
  std::multiset<uint64_t> freed_;  // offsets that must come out of TakeFreed()
  std::map<uint64_t, std::pair<BlockPtr, PageKey>> by_extent_;
};

}  // namespace prefixd::index
