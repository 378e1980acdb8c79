// The blocks of one sequence: cached pages where they stand, then pages of our own that grow as the
// engine appends. A block that the cache holds in part becomes an own page by copying its tokens,
// in the donor's format, never by quantizing them again. An own page that was stored may be swapped
// for the arena's.
//
// Not thread-safe. Own pages have block_tokens slots and zeros in the unused ones; they stand in
// staging memory as far as that has room, else on the heap.
#pragma once
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "cached_pages.h"
#include "kernels/quantize.h"
#include "own_pages.h"
#include "prefixd/client.h"
#include "space_state.h"
#include "staging_memory.h"
#include "state_pages.h"

namespace prefixd::client {

// Tokens [begin, begin + count) of one layer.
struct LayerTokens {
  uint32_t layer = 0;
  uint32_t begin = 0;
  uint32_t count = 0;
};

// Which rung of the ladder a block of our own is written in.
// Indexes into the layers' formats (format_index.h).
struct WriteRungs {
  uint32_t rung = 0;
  uint32_t head_tokens = 0;  // blocks that end at or before it
  uint32_t head_rung = 0;    // are written in this one
  uint64_t coarser = 0;      // mask of those that may be written instead of `rung`, if advised

  bool IsHead(uint32_t block, uint32_t block_tokens) const {
    return (uint64_t{block} + 1) * block_tokens <= head_tokens;
  }
  uint32_t OfBlock(uint32_t block, uint32_t block_tokens) const {
    return IsHead(block, block_tokens) ? head_rung : rung;
  }
  // The next coarser one of so many formats, or `rung`.
  uint32_t Coarser(uint32_t formats) const;
};

class SequencePages final : public OwnPages {
 public:
  SequencePages(std::shared_ptr<const SpaceState> space, uint32_t block_tokens,
                const WriteRungs& write_rungs);

  // Where own pages begun from now on stand; null = the heap.
  void UseStaging(std::shared_ptr<StagingMemory> staging) {
    states_.UseStaging(staging);
    staging_ = std::move(staging);
  }

  // Starts over: tokens [0, cached_tokens) are `load`'s (null when 0), own pages are dropped.
  void Restart(std::shared_ptr<CachedPages> load, uint32_t cached_tokens);
  // Goes on: `load`, which is what it was or a new lease, has tokens [0, cached_tokens); own pages
  // are dropped. Requires: cached_tokens >= complete_tokens().
  void Extend(std::shared_ptr<CachedPages> load, uint32_t cached_tokens);
  // Whole blocks begun from now on are written in a coarser rung, or are not.
  void Advise(bool coarser) { advised_ = coarser; }
  // Blocks begun so since the last call.
  uint64_t TakeCoarserBlocks() { return std::exchange(coarser_blocks_, 0); }
  uint32_t cached_tokens() const { return cached_tokens_; }
  uint32_t block_tokens() const override { return block_tokens_; }
  // Tokens that every layer has; layers that keep a state are not asked.
  uint32_t complete_tokens() const;
  // Snapshots of states. Requires: StateLayer() gave `place`.
  absl::Status PutState(LayerPlace place, uint32_t tokens, std::span<const std::byte> state);
  void DropStates(uint32_t tokens) { states_.Drop(tokens); }  // those of up to so many tokens
  // The state at cached_tokens(). Requires: as above, and that there are cached tokens whose pages
  // were waited for.
  void CopyState(LayerPlace place, std::span<std::byte> state) const;

  // Requires of all below: the layer exists and its cached pages were waited for.
  //
  // InvalidArgument for a gap, for going back before the cached tokens, for strides that do not
  // hold a row; FailedPrecondition for packed bytes in another format than their block.
  absl::Status Append(const LayerTokens& tokens, const TensorView& key, const TensorView& value);
  absl::Status WritePacked(const LayerTokens& tokens, const PackedView& key,
                           const PackedView& value);
  absl::Status Gather(const LayerTokens& tokens, const MutablePackedView& key,
                      const MutablePackedView& value) const;
  std::span<const BlockTableEntry> Table(uint32_t layer);
  // What Gather copies. Requires: it is OK, count > 0.
  uint64_t PayloadBytes(const LayerTokens& tokens) const;

  // What Publish takes.
  Page own_page(uint32_t group, uint32_t block) const override;
  bool IsOwn(uint32_t group, uint32_t block) const override;
  // The same bytes stand in the arena: they are read there from now on, the own copy goes. False,
  // and nothing happens, unless the block is our own, full in every layer, and `page` as long, in
  // the same format.
  bool Swap(uint32_t group, uint32_t block, const CachedPage& page);
  // Bytes of pages that are read in the arena.
  uint64_t in_place_bytes() const;
  uint64_t rungs_used(uint32_t group) const override;
  std::vector<State> states(uint32_t begin, uint32_t end) const override {
    return states_.Whole(begin, end);
  }

 private:
  struct Own {
    PageMemory memory;  // none: swapped
    CachedPage place;
  };
  struct LayerState {
    uint32_t end = 0;                    // tokens [0, end) are here
    std::vector<BlockTableEntry> table;  // the first `settled` entries do not change any more
    uint32_t settled = 0;
  };

  absl::Status CheckAppend(const LayerTokens& tokens) const;
  // The rung that all blocks of the tokens, whose bytes are given, have or will have.
  absl::StatusOr<uint32_t> RungOfPacked(const LayerTokens& tokens) const;
  absl::Status EnsureOwn(uint32_t group, uint32_t first_block, uint32_t last_block);
  absl::StatusOr<Own> NewOwn(uint32_t group, uint32_t block);
  // Decided with the block's first page: one advice for all groups.
  bool IsCoarser(uint32_t block);
  // A swapped page that is about to be written becomes private again.
  absl::Status Unswap(uint32_t group, Own* own) const;
  void Unsettle(uint32_t group, uint32_t block);
  CachedPage PlaceOf(uint32_t group, uint32_t block) const;
  // Calls visit(block, own page, run of tokens in it) for the blocks of an append.
  template <typename Visit>
  absl::Status ForEachOwn(const LayerTokens& tokens, Visit visit);
  uint32_t first_own_block() const { return cached_tokens_ / block_tokens_; }

  const std::shared_ptr<const SpaceState> space_;
  const uint32_t block_tokens_;
  const WriteRungs write_rungs_;
  std::shared_ptr<StagingMemory> staging_;
  std::shared_ptr<CachedPages> load_;
  uint32_t cached_tokens_ = 0;
  std::vector<LayerState> layers_;
  std::vector<std::vector<Own>> own_;  // [group][block - first_own_block()]
  bool advised_ = false;
  std::vector<bool> coarser_;  // [block - first_own_block()]
  uint64_t coarser_blocks_ = 0;
  StatePages states_;
};

}  // namespace prefixd::client
