// The blocks of one sequence: cached pages as they were loaded, then pages of our own that grow as
// the engine appends. A block that the cache holds in part becomes an own page by copying its
// tokens, in the donor's format, never by quantizing them again.
//
// Not thread-safe. Own pages have block_tokens slots and zeros in the unused ones.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "kernels/quantize.h"
#include "page_load.h"
#include "prefixd/client.h"
#include "space_state.h"

namespace prefixd::client {

// Tokens [begin, begin + count) of one layer.
struct LayerTokens {
  uint32_t layer = 0;
  uint32_t begin = 0;
  uint32_t count = 0;
};

class SequencePages {
 public:
  SequencePages(std::shared_ptr<const SpaceState> space, uint32_t block_tokens,
                uint32_t write_rung);

  // Starts over: tokens [0, cached_tokens) are `load`'s (null when 0), own pages are dropped.
  void Restart(std::shared_ptr<PageLoad> load, uint32_t cached_tokens);
  uint32_t cached_tokens() const { return cached_tokens_; }
  uint32_t block_tokens() const { return block_tokens_; }
  // Tokens that every layer has.
  uint32_t complete_tokens() const;

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

  // An own page for publishing; bytes is null when the block is not our own in this group.
  struct OwnPage {
    const std::byte* bytes = nullptr;
    uint32_t rung = 0;
  };
  OwnPage own_page(uint32_t group, uint32_t block) const;
  // Bit mask of the rungs in which the sequence's blocks stand in `group`.
  uint64_t rungs_used(uint32_t group) const;

 private:
  struct Own {
    PageMemory bytes;
    uint32_t rung = 0;
  };
  // Where the bytes of a block of a layer are.
  struct Place {
    const std::byte* page = nullptr;
    uint32_t page_tokens = 0;
    uint32_t rung = 0;
  };
  struct LayerState {
    uint32_t end = 0;                    // tokens [0, end) are here
    std::vector<BlockTableEntry> table;  // the first `settled` entries do not change any more
    uint32_t settled = 0;
  };

  absl::Status CheckAppend(const LayerTokens& tokens) const;
  absl::Status EnsureOwn(uint32_t group, uint32_t first_block, uint32_t last_block);
  Place PlaceOf(uint32_t group, uint32_t block) const;
  BlockTableEntry EntryOf(uint32_t layer, uint32_t block) const;
  // Calls visit(block, own page, run of tokens in it) for the blocks of an append.
  template <typename Visit>
  absl::Status ForEachOwn(const LayerTokens& tokens, Visit visit);
  uint32_t first_own_block() const { return cached_tokens_ / block_tokens_; }

  const std::shared_ptr<const SpaceState> space_;
  const uint32_t block_tokens_;
  const uint32_t write_rung_;
  std::shared_ptr<PageLoad> load_;
  uint32_t cached_tokens_ = 0;
  std::vector<LayerState> layers_;
  std::vector<std::vector<Own>> own_;  // [group][block - first_own_block()]
};

}  // namespace prefixd::client
