// The blocks of one sequence: cached pages where they are, then own pages that grow as the engine
// appends. A block that the cache holds in part becomes an own page by copying its tokens, in the
// donor's format, never by quantizing them again. An own page that was stored may be swapped for
// the arena's.
//
// Not thread-safe. Own pages have block_tokens slots and zeros in the unused ones. They are in
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

// In which format own blocks are written: indexes into the layers' formats (format_index.h).
struct WriteRungs {
  uint32_t rung = 0;
  // Blocks that end at or before head_tokens are written in head_rung.
  uint32_t head_tokens = 0;
  uint32_t head_rung = 0;
  uint64_t coarser = 0;  // mask of those that may be written instead of `rung`, if advised

  bool IsHead(uint32_t block, uint32_t block_tokens) const {
    return (uint64_t{block} + 1) * block_tokens <= head_tokens;
  }
  uint32_t OfBlock(uint32_t block, uint32_t block_tokens) const {
    return IsHead(block, block_tokens) ? head_rung : rung;
  }
  // Returns the next coarser format that `coarser` allows, below `formats`; `rung` if there is
  // none.
  uint32_t Coarser(uint32_t formats) const;
};

class SequencePages final : public OwnPages {
 public:
  SequencePages(std::shared_ptr<const SpaceState> space, uint32_t block_tokens,
                const WriteRungs& write_rungs);

  // Puts own pages begun from now on into `staging`; null = the heap.
  void UseStaging(std::shared_ptr<StagingMemory> staging) {
    states_.UseStaging(staging);
    staging_ = std::move(staging);
  }

  // Starts over: `load` has tokens [0, cached_tokens) and is null if there are none. Drops own
  // pages.
  void Restart(std::shared_ptr<CachedPages> load, uint32_t cached_tokens);
  // Sets whether whole blocks begun from now on are written in a coarser format.
  void Advise(bool coarser) { advised_ = coarser; }
  // Returns the blocks begun in a coarser format since the last call.
  uint64_t TakeCoarserBlocks() { return std::exchange(coarser_blocks_, 0); }
  uint32_t cached_tokens() const { return cached_tokens_; }
  uint32_t block_tokens() const override { return block_tokens_; }
  // Tokens that every layer has. Layers that keep a state do not count, unless there are no others.
  uint32_t complete_tokens() const;
  // Adds a layer's state to the snapshot at `tokens`. Requires: `place` comes from StateLayer().
  absl::Status PutState(LayerPlace place, uint32_t tokens, std::span<const std::byte> state);
  void DropStates(uint32_t tokens) { states_.Drop(tokens); }  // drops those of up to so many tokens
  // Copies out the state at cached_tokens(). Requires: as above, and that there are cached tokens
  // whose pages were waited for.
  void CopyState(LayerPlace place, std::span<std::byte> state) const;

  // All below require that the layer exists and its cached pages were waited for.
  //
  // InvalidArgument for a gap, for going back before the cached tokens, for strides that do not
  // hold a row; FailedPrecondition for packed bytes in another format than their block.
  absl::Status Append(const LayerTokens& tokens, const TensorView& key, const TensorView& value);
  absl::Status WritePacked(const LayerTokens& tokens, const PackedView& key,
                           const PackedView& value);
  absl::Status Gather(const LayerTokens& tokens, const MutablePackedView& key,
                      const MutablePackedView& value) const;
  // Gather() of elements; the tokens may be in several formats.
  absl::Status GatherRows(const LayerTokens& tokens, const MutableTensorView& key,
                          const MutableTensorView& value) const;
  std::span<const BlockTableEntry> Table(uint32_t layer);
  // Returns the stored bytes that Gather() or GatherRows() reads. Requires: it is OK.
  uint64_t PayloadBytes(const LayerTokens& tokens) const;

  // For Publish().
  Page own_page(uint32_t group, uint32_t block) const override;
  bool IsOwn(uint32_t group, uint32_t block) const override;
  // Reads an own page, whose bytes are in the arena too, from `page` there from now on, and frees
  // its memory. Returns false, and does nothing, unless the block is our own, full in every layer,
  // and `page` is as long and in the same format.
  bool Swap(uint32_t group, uint32_t block, const CachedPage& page);
  // Bytes of pages that are read in the arena.
  uint64_t in_place_bytes() const;
  uint64_t rungs_used(uint32_t group) const override;
  std::vector<State> states(uint32_t begin, uint32_t end) const override {
    return states_.Whole(begin, end);
  }

 private:
  struct Own {
    PageMemory memory;  // none if the page was swapped
    CachedPage place;
  };
  struct LayerState {
    uint32_t end = 0;                    // tokens [0, end) are here
    std::vector<BlockTableEntry> table;  // the first `settled` entries do not change any more
    uint32_t settled = 0;
  };

  absl::Status CheckAppend(const LayerTokens& tokens) const;
  // Returns the rung that all blocks of the packed tokens have or will have.
  absl::StatusOr<uint32_t> RungOfPacked(const LayerTokens& tokens) const;
  absl::Status EnsureOwn(uint32_t group, uint32_t first_block, uint32_t last_block);
  absl::StatusOr<Own> NewOwn(uint32_t group, uint32_t block);
  // Whether the block is written in a coarser format. Decided with its first page: one advice for
  // all groups.
  bool IsCoarser(uint32_t block);
  // Makes a swapped page that is about to be written private again.
  absl::Status Unswap(uint32_t group, Own* own) const;
  void Unsettle(uint32_t group, uint32_t block);
  CachedPage PlaceOf(uint32_t group, uint32_t block) const;
  // Calls visit(own page, first slot, first row, count) for each block of an append.
  template <typename Visit>
  absl::Status ForEachOwn(const LayerTokens& tokens, Visit visit);
  // Why the tokens cannot be gathered; OK if their pages are here.
  absl::Status CheckHere(const LayerTokens& tokens) const;
  // Calls visit(PageRows, the page) for each block of tokens that are here.
  template <typename Visit>
  void ForEachHere(const LayerTokens& tokens, Visit visit) const;
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
