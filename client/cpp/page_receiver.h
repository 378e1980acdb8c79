// Takes the pieces of one group's pages in position order, believing nothing: sizes, ranges, rungs
// and checksums are what the lease and the layout say, or the piece is refused.
//
// Not thread-safe.
#pragma once
#include <vector>

#include "absl/status/status.h"

#include "base/checksum.h"
#include "block/layer_group.h"
#include "page_chunk.h"
#include "page_memory.h"

namespace prefixd::client {

// A page that the lease holds.
struct ExpectedPage {
  uint32_t first_token = 0;  // of its block
  uint32_t tokens = 0;       // of the lease in it
  uint32_t rung = 0;
};

struct LoadedPage {
  PageMemory bytes;
  uint32_t page_tokens = 0;
  uint32_t rung = 0;
};

class PageReceiver {
 public:
  // `pages`: of the group, in position order, as the lease of `tokens` tokens said: of a full group
  // one for each block, of a sliding one those that it needs, of a state group one. `group`
  // outlives the receiver.
  PageReceiver(const block::LayerGroup& group, uint32_t block_tokens, uint32_t tokens,
               std::vector<ExpectedPage> pages);

  // Forgets what came, for a stream that begins again.
  void Reset();
  // Takes the next piece; bytes of tokens at or beyond `limit` may be cut off or left out by the
  // sender. DataLoss saying what is wrong.
  absl::Status Take(const FetchedChunk& chunk, uint32_t limit);
  // What is needed of tokens [0, tokens()) is here, whole and checked.
  uint32_t tokens() const;
  // Of the block; null: none is needed. Of a state group: its one page, whatever the block.
  const LoadedPage* page(uint32_t block) const;

 private:
  absl::Status Begin(const PieceHeader& piece, uint32_t limit);
  uint64_t CopyAndSum(const FetchedChunk& chunk, std::byte* to);

  const block::LayerGroup& group_;
  const uint32_t block_tokens_;
  const uint32_t tokens_;
  const std::vector<ExpectedPage> expected_;
  base::Xxh3Stream sum_;
  std::vector<std::span<const std::byte>> runs_;  // of the piece at hand
  std::vector<LoadedPage> pages_;                 // whole ones, then the one that is coming in
  uint64_t page_bytes_ = 0;                       // of the page coming in; 0 = none is
  uint64_t received_bytes_ = 0;                   // of it
  size_t whole_ = 0;                              // pages
};

}  // namespace prefixd::client
