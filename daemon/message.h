// Converts messages between gRPC's bytes and protobuf. A message's length, and the memory that it
// would take, are checked before it is parsed.
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

// Returns about how many bytes of memory `message` takes as `type`. InvalidArgument if it is longer
// or larger than `limit`, or not such a message.
absl::StatusOr<uint64_t> UnfoldedBytes(const google::protobuf::Descriptor& type,
                                       const grpc::ByteBuffer& message, const MessageLimit& limit);

// Parses a message that UnfoldedBytes let pass, and frees it.
absl::Status Parse(grpc::ByteBuffer* message, google::protobuf::Message* parsed);
// Checks and parses a message without tokens.
absl::Status ReadSmall(const grpc::ByteBuffer& message, google::protobuf::Message* parsed);

grpc::Status Write(const google::protobuf::Message& message, grpc::ByteBuffer* written);

}  // namespace prefixd::daemon
