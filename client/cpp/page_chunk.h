// A FetchChunk as it was received. A piece's data stays where gRPC received it. Not thread-safe.
#pragma once
#include <grpcpp/support/byte_buffer.h>

#include <optional>
#include <span>

#include "prefixd/v1/prefix_cache.pb.h"
#include "wire/page_message.h"

namespace prefixd::client {

class FetchedChunk {
 public:
  // Returns false if the bytes are no FetchChunk that this version knows.
  bool Parse(const grpc::ByteBuffer& bytes);

  bool is_page() const { return is_page_; }
  const wire::PieceHeader& piece() const { return piece_; }       // Requires: is_page()
  const v1::GroupReady& ready() const { return chunk_.ready(); }  // Requires: !is_page()
  // The data in runs; valid until the next Parse.
  std::span<const std::span<const std::byte>> runs() const { return runs_; }

 private:
  std::optional<wire::PageMessage> message_;
  v1::FetchChunk chunk_;  // in any form but the one that PageMessage reads in place
  bool is_page_ = false;
  wire::PieceHeader piece_;
  wire::PageMessage::Runs runs_;
};

}  // namespace prefixd::client
