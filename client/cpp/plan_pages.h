// The blocks that a plan stores: those that were asked for, each with one page per group, filled
// layer by layer from the engine's tensors.
//
// Not thread-safe. Pages have block_tokens slots and zeros in the unused ones. They are in staging
// memory as far as that has room, else on the heap.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"

#include "own_pages.h"
#include "prefixd/client.h"
#include "space_state.h"
#include "staging_memory.h"
#include "state_pages.h"

namespace prefixd::client {

class PlanPages final : public OwnPages {
 public:
  struct Options {
    uint32_t block_tokens = 0;
    // Indexes into the layers' formats (format_index.h).
    uint32_t format = 0;    // the one that is written
    uint64_t coarser = 0;   // mask of those that may be written instead
    uint64_t readable = 0;  // mask of those in which a block need not be written again
  };
  PlanPages(std::shared_ptr<const SpaceState> space, const Options& options);

  // Puts pages begun from now on into `staging`; null = the heap.
  void UseStaging(std::shared_ptr<StagingMemory> staging) {
    states_.UseStaging(staging);
    staging_ = std::move(staging);
  }
  // Asks for `tokens` tokens of a block, in that format.
  void Ask(uint32_t block, uint32_t tokens, uint32_t format);
  // Bytes of the pages of one block.
  uint64_t block_bytes() const;

  // Copies in tokens [begin, begin + count) of a layer that exists; passes over those of blocks
  // that were not asked for. InvalidArgument for a gap inside a block, for missing parts, for a
  // format that no layer has; FailedPrecondition if the blocks are in several formats of the layer.
  absl::Status Write(uint32_t layer, uint32_t begin, uint32_t count, const PackedView& key,
                     const PackedView& value);
  // The same with elements, which are quantized. The blocks may be in several formats.
  absl::Status WriteRows(uint32_t layer, uint32_t begin, uint32_t count, const TensorView& key,
                         const TensorView& value);
  // InvalidArgument if a block before `tokens` that was asked for is not whole. Call it before
  // those blocks are published.
  absl::Status CheckWritten(uint32_t tokens) const;
  // Forgets the blocks that end at or before `tokens`.
  void Drop(uint32_t tokens);

  uint32_t block_tokens() const override { return options_.block_tokens; }
  bool IsOwn(uint32_t group, uint32_t block) const override;
  Page own_page(uint32_t group, uint32_t block) const override;
  uint64_t rungs_used(uint32_t group) const override;
  // Requires: `place` comes from StateLayer().
  absl::Status PutState(LayerPlace place, uint32_t tokens, std::span<const std::byte> state) {
    return states_.Put(place, tokens, state);
  }
  std::vector<State> states(uint32_t begin, uint32_t end) const override {
    return states_.Whole(begin, end);
  }

 private:
  struct Block {
    uint32_t tokens = 0;
    uint32_t format = 0;
    std::vector<PageMemory> pages{};  // one for each group, none until it is written to
    std::vector<uint32_t> written{};  // tokens written of each layer, from the block's first on
  };
  // Checks that tokens of the layer can be written at all.
  absl::Status CheckLayer(const char* caller, uint32_t layer) const;
  // Calls visit(PageRows, the page) for each block of the tokens that was asked for.
  template <typename Visit>
  absl::Status ForEachAsked(const char* caller, uint32_t layer, uint32_t begin, uint32_t count,
                            Visit visit);
  absl::Status EnsurePage(uint32_t group, uint32_t rung, PageMemory* page) const;
  // Returns the group's rung for the blocks of tokens [begin, end) that were asked for; that of
  // options_.format if there are none.
  absl::StatusOr<uint32_t> RungOfBlocks(const block::LayerGroup& group, uint32_t begin,
                                        uint32_t end) const;

  const std::shared_ptr<const SpaceState> space_;
  const Options options_;
  std::shared_ptr<StagingMemory> staging_;
  std::map<uint32_t, Block> blocks_;  // by index
  StatePages states_;
};

}  // namespace prefixd::client
