// What a Sequence is inside. Belongs to one thread at a time.
#pragma once
#include <memory>
#include <vector>

#include "block/tokens.h"
#include "core.h"
#include "page_load.h"
#include "prefixd/client.h"
#include "sequence_pages.h"
#include "space_state.h"

namespace prefixd {

struct Sequence::Impl {
  std::shared_ptr<client::Core> core;
  std::shared_ptr<client::SpaceState> space;
  std::vector<uint32_t> tokens;
  std::vector<block::ContentKey> content;
  MatchInfo match;
  std::shared_ptr<client::PageLoad> load;  // null without a lease
  bool released = false;
  client::SequencePages pages;
  uint32_t committed_tokens = 0;  // whole blocks up to here need no further look
  uint32_t end_tokens = 0;        // the last end that was declared

  bool HasLayer(int layer) const {
    return layer >= 0 && static_cast<size_t>(layer) < space->layers().size();
  }
  // Waits for the layer's pages. FailedPrecondition when a page turned out bad.
  absl::Status Ready(int layer) const;
  absl::Status CheckTokens(int layer, uint32_t begin, uint32_t count) const;
  absl::StatusOr<CommitInfo> Commit(const CommitOptions& options);
};

}  // namespace prefixd
