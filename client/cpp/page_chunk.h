// Takes FetchChunk apart and puts PutChunk together by hand, so that a page's bytes are copied once
// on their way in and not at all on their way out. The bytes are those of the proto messages.
//
// Not thread-safe.
#pragma once
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "page_memory.h"
#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::client {

// PageBytes without its data.
struct PieceHeader {
  uint32_t group = 0, first_token = 0, tokens = 0, rung = 0;
  uint64_t page_bytes = 0;
  uint64_t offset = 0;
  uint64_t xxh3 = 0;
  uint64_t sum_seed = 0;  // that xxh3 was computed with
  uint64_t data_bytes = 0;
};

// A FetchChunk as it was received. Fields may be in any order and in pieces of memory of any size.
class FetchedChunk {
 public:
  // Returns false if the bytes are no FetchChunk.
  bool Parse(const grpc::ByteBuffer& bytes);

  bool is_page() const { return is_page_; }
  const PieceHeader& piece() const { return piece_; }     // Requires: is_page()
  const v1::GroupReady& ready() const { return ready_; }  // Requires: !is_page()
  // Calls `take` with each run of the data where it was received; valid as long as this object.
  template <typename Take>
  void ForEachRun(const Take& take) const;

 private:
  bool ParsePiece(class SliceCursor cursor, uint64_t bytes);

  std::vector<grpc::Slice> slices_;
  bool is_page_ = false;
  PieceHeader piece_;
  size_t data_slice_ = 0, data_at_ = 0;  // where the data begins
  v1::GroupReady ready_;
};

template <typename Take>
void FetchedChunk::ForEachRun(const Take& take) const {
  uint64_t left = piece_.data_bytes;
  size_t at = data_at_;
  for (size_t i = data_slice_; left > 0; ++i, at = 0) {
    const size_t bytes = std::min<uint64_t>(left, slices_[i].size() - at);
    take(std::span(reinterpret_cast<const std::byte*>(slices_[i].begin()) + at, bytes));
    left -= bytes;
  }
}

// Returns a PutChunk with `piece`, whose data are the bytes of `page` from `at` on. The message
// holds the page until it has left.
grpc::ByteBuffer MakePutChunk(const PieceHeader& piece, const PageMemory& page, uint64_t at);

}  // namespace prefixd::client
