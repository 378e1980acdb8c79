// A message with a piece of a page, FetchChunk{page} or PutChunk{page}, as gRPC sends and receives
// it: in slices, so that nothing copies the megabyte on its way to or from the socket.
#pragma once
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "wire/page.h"

namespace prefixd::wire {

// Returns the message: a hand-made header, then piece.data_bytes bytes from `data` on. With `hold`
// it borrows the data, and keeps `hold` until gRPC is done with it; without `hold` it copies the
// data.
grpc::ByteBuffer MakePageMessage(const PieceHeader& piece, const std::byte* data,
                                 std::shared_ptr<const void> hold);

// A received message. Not thread-safe.
class PageMessage {
 public:
  using Runs = std::vector<std::span<const std::byte>>;

  explicit PageMessage(const grpc::ByteBuffer& buffer);
  // As ReadPieceHeader; nullopt also for a compressed message.
  std::optional<ParsedPiece> Header() const;
  // Sets `runs` to the message's bytes from `from` on, where they were received. They are valid as
  // long as this object.
  void RunsFrom(size_t from, Runs* runs) const;

 private:
  std::vector<grpc::Slice> slices_;
  size_t bytes_ = 0;
  bool whole_ = false;  // false: compressed, so not readable
};

}  // namespace prefixd::wire
