// Pages on their way: FetchChunk{page} and PutChunk{page}, which have one encoding. The bulk path
// writes and reads their fields in place, so that protobuf never copies the megabyte behind them.
// The bytes on the wire are those of the generated classes, which read what this writes and write
// what this reads.
//
// Pure functions.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"

#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::wire {

// PageBytes without its data.
struct PieceHeader {
  uint32_t group = 0;
  uint32_t first_token = 0;
  uint32_t tokens = 0;
  uint32_t rung = 0;
  uint64_t page_bytes = 0;
  uint64_t offset = 0;
  uint64_t xxh3 = 0;
  uint64_t sum_seed = 0;
  uint64_t data_bytes = 0;
  bool operator==(const PieceHeader&) const = default;
};

// InvalidArgument for a piece of no bytes or more than kMaxPieceBytes, or one that reaches past
// page_bytes.
absl::Status CheckPiece(const PieceHeader& piece);

inline constexpr size_t kMaxPieceHeaderBytes = 88;

// Writes everything of the message that stands before the data, and returns how many bytes. The
// message is these bytes and then the data. Requires: room for kMaxPieceHeaderBytes, data_bytes in
// 1..kMaxPieceBytes.
size_t WritePieceHeader(const PieceHeader& piece, std::byte* to);

struct ParsedPiece {
  PieceHeader header;
  size_t header_bytes = 0;  // the data is the rest of the message
};
// Reads what WritePieceHeader or protobuf wrote, its fields in any order, the data last. `start`:
// the first min(message_bytes, kMaxPieceHeaderBytes) bytes of the message. Returns nullopt for any
// other message, valid or not: the generated class judges that.
std::optional<ParsedPiece> ReadPieceHeader(std::span<const std::byte> start,
                                           uint64_t message_bytes);

PieceHeader HeaderOf(const v1::PageBytes& page);

}  // namespace prefixd::wire
