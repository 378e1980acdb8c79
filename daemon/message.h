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

// No request takes more memory than this when it is parsed.
inline constexpr uint64_t kMaxUnfoldedBytes = uint64_t{10} << 20;

// About how many bytes of memory `message` takes as `type`. InvalidArgument: it is longer than
// `most_bytes`, takes too much, or is no such message.
absl::StatusOr<uint64_t> UnfoldedBytes(const google::protobuf::Descriptor& type,
                                       const grpc::ByteBuffer& message, uint64_t most_bytes);

// Parses what UnfoldedBytes let pass; frees `message`.
absl::Status Parse(grpc::ByteBuffer* message, google::protobuf::Message* parsed);
// Both, of a message without tokens.
absl::Status ReadSmall(const grpc::ByteBuffer& message, google::protobuf::Message* parsed);

grpc::Status Write(const google::protobuf::Message& message, grpc::ByteBuffer* written);

}  // namespace prefixd::daemon
