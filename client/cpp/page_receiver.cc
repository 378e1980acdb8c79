#include "page_receiver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "block/page_layout.h"

namespace prefixd::client {
namespace {

absl::Status Bad(const block::LayerGroup& group, const char* field, uint64_t seen,
                 uint64_t wanted) {
  return absl::DataLossError(
      absl::StrCat("fetch: group ", group.name, ": ", field, " is ", seen, ", expected ", wanted));
}

}  // namespace

PageReceiver::PageReceiver(const block::LayerGroup& group, uint32_t block_tokens, uint32_t tokens,
                           std::vector<ExpectedPage> pages)
    : group_(group), block_tokens_(block_tokens), tokens_(tokens), expected_(std::move(pages)) {}

void PageReceiver::Reset() {
  pages_.clear();
  page_bytes_ = received_bytes_ = 0;
  whole_ = 0;
}

uint32_t PageReceiver::tokens() const {
  return whole_ == expected_.size() ? tokens_ : expected_[whole_].first_token;
}

const LoadedPage* PageReceiver::page(uint32_t block) const {
  if (group_.kind == block::LayerKind::kState) return &pages_.front();
  const auto found = std::lower_bound(
      expected_.begin(), expected_.end(), block * block_tokens_,
      [](const ExpectedPage& page, uint32_t token) { return page.first_token < token; });
  if (found == expected_.end() || found->first_token != block * block_tokens_) return nullptr;
  return &pages_[static_cast<size_t>(found - expected_.begin())];
}

absl::Status PageReceiver::Begin(const wire::PieceHeader& piece, uint32_t limit) {
  const ExpectedPage& expected = expected_[whole_];
  const bool state = group_.kind == block::LayerKind::kState;
  // If the lease became shorter, the daemon cuts the page shorter: any page that covers what is
  // wanted will do.
  const uint32_t rest = std::min(tokens_, limit) - expected.first_token;
  const uint32_t least = state ? expected.tokens : std::min(expected.tokens, rest);
  if (piece.tokens < least || piece.tokens > (state ? least : block_tokens_)) {
    return Bad(group_, "page tokens", piece.tokens, least);
  }
  if (piece.rung != expected.rung) return Bad(group_, "rung", piece.rung, expected.rung);
  const uint64_t bytes = block::LayoutOfPage(group_, piece.rung, piece.tokens).page_bytes;
  if (piece.page_bytes != bytes) return Bad(group_, "page bytes", piece.page_bytes, bytes);
  PageMemory memory = AllocatePage(bytes);
  if (!memory) return absl::ResourceExhaustedError("fetch: no memory for a page");
  pages_.push_back({.bytes = std::move(memory), .page_tokens = piece.tokens, .rung = piece.rung});
  page_bytes_ = bytes;
  received_bytes_ = 0;
  return absl::OkStatus();
}

absl::Status PageReceiver::Take(const FetchedChunk& chunk, uint32_t limit) {
  const wire::PieceHeader& piece = chunk.piece();
  const bool done = whole_ == expected_.size() || expected_[whole_].first_token >= limit;
  if (done && piece.first_token >= tokens()) return absl::OkStatus();  // no longer wanted
  const uint32_t wanted = done ? tokens() : expected_[whole_].first_token;
  if (done || piece.first_token != wanted) {
    return Bad(group_, "first token", piece.first_token, wanted);
  }
  if (page_bytes_ == 0) PREFIXD_RETURN_IF_ERROR(Begin(piece, limit));
  LoadedPage& page = pages_.back();
  if (piece.page_bytes != page_bytes_ || piece.tokens != page.page_tokens ||
      piece.rung != page.rung) {
    return Bad(group_, "page bytes of a later piece", piece.page_bytes, page_bytes_);
  }
  if (piece.offset != received_bytes_) return Bad(group_, "offset", piece.offset, received_bytes_);
  if (piece.data_bytes == 0 || piece.data_bytes > page_bytes_ - received_bytes_) {
    return Bad(group_, "piece bytes", piece.data_bytes, page_bytes_ - received_bytes_);
  }
  // Sums what is stored here: what was checked is what stays.
  sum_.Begin(piece.sum_seed);
  sum_.CopyAndUpdate(chunk.runs(), page.bytes.get() + received_bytes_);
  const uint64_t seen = sum_.Finish();
  if (seen != piece.xxh3) return Bad(group_, "checksum", seen, piece.xxh3);
  received_bytes_ += piece.data_bytes;
  if (received_bytes_ == page_bytes_) {
    ++whole_;
    page_bytes_ = 0;
  }
  return absl::OkStatus();
}

}  // namespace prefixd::client
