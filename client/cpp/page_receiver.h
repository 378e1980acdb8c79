// Receives the pieces of one group's pages in position order and believes nothing: it refuses a
// piece whose size, range, rung or checksum is not what the lease and the layout say.
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
  uint32_t first_token = 0;  // of the page's block
  uint32_t tokens = 0;       // of the lease in the page
  uint32_t rung = 0;
};

struct LoadedPage {
  PageMemory bytes;
  uint32_t page_tokens = 0;
  uint32_t rung = 0;
};

class PageReceiver {
 public:
  // `pages`: the group's pages in a lease of `tokens` tokens, in position order: one for each block
  // of a full group, those that a sliding group needs, or the one of a state group. `group`
  // outlives the receiver.
  PageReceiver(const block::LayerGroup& group, uint32_t block_tokens, uint32_t tokens,
               std::vector<ExpectedPage> pages);

  // Forgets what was received, for a stream that begins again.
  void Reset();
  // Takes the next piece. The sender may cut off or leave out bytes of tokens at or beyond `limit`.
  // DataLoss says what is wrong.
  absl::Status Take(const FetchedChunk& chunk, uint32_t limit);
  // Returns the tokens of which everything needed is here, whole and checked.
  uint32_t tokens() const;
  // Returns the page of the block; null if none is needed. Of a state group: its one page, whatever
  // the block.
  const LoadedPage* page(uint32_t block) const;

 private:
  absl::Status Begin(const wire::PieceHeader& piece, uint32_t limit);

  const block::LayerGroup& group_;
  const uint32_t block_tokens_;
  const uint32_t tokens_;
  const std::vector<ExpectedPage> expected_;
  base::Xxh3Stream sum_;
  std::vector<LoadedPage> pages_;  // whole ones, then the incoming one
  uint64_t page_bytes_ = 0;        // of the incoming page; 0 if there is none
  uint64_t received_bytes_ = 0;    // of the incoming page
  size_t whole_ = 0;               // whole pages
};

}  // namespace prefixd::client
