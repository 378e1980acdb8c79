#include "page_chunk.h"

#include "base/bytes.h"
#include "raw_stream.h"

namespace prefixd::client {

bool FetchedChunk::Parse(const grpc::ByteBuffer& bytes) {
  message_.emplace(bytes);
  const std::optional<wire::ParsedPiece> parsed = message_->Header();
  if (parsed.has_value()) {
    is_page_ = true;
    piece_ = parsed->header;
    message_->RunsFrom(parsed->header_bytes, &runs_);
    return true;
  }
  chunk_.Clear();
  if (!client::Parse(bytes, &chunk_)) return false;
  is_page_ = chunk_.has_page();
  if (!is_page_) return chunk_.has_ready();
  piece_ = wire::HeaderOf(chunk_.page());
  runs_.assign(1, base::AsBytes(chunk_.page().data()));
  return true;
}

}  // namespace prefixd::client
