// Messages as gRPC moves them, to and from protobuf. What a message may be is looked at before it
// is parsed: its length, and the memory that it would take.
//
// Pure functions.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "grpcpp/grpcpp.h"

namespace prefixd::daemon {

// How large one message may be.
struct MessageLimit {
  uint64_t bytes = 0;           // on the wire
  uint64_t unfolded_bytes = 0;  // in memory, once it is parsed
};
constexpr MessageLimit LimitOf(uint64_t message_bytes) {
  return {.bytes = message_bytes, .unfolded_bytes = message_bytes + (uint64_t{1} << 20)};
}

// About how many bytes of memory `message` takes as `type`. InvalidArgument: it is longer or larger
// than `limit`, or no such message.
absl::StatusOr<uint64_t> UnfoldedBytes(const google::protobuf::Descriptor& type,
                                       const grpc::ByteBuffer& message, const MessageLimit& limit);

// Parses what UnfoldedBytes let pass; frees `message`.
absl::Status Parse(grpc::ByteBuffer* message, google::protobuf::Message* parsed);
// Both, of a message without tokens.
absl::Status ReadSmall(const grpc::ByteBuffer& message, google::protobuf::Message* parsed);

grpc::Status Write(const google::protobuf::Message& message, grpc::ByteBuffer* written);

}  // namespace prefixd::daemon
