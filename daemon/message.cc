#include "daemon/message.h"

#include "absl/strings/str_cat.h"
#if __has_include("grpcpp/impl/proto_utils.h")  // what generated services use
#include "grpcpp/impl/proto_utils.h"
#else
#include "grpcpp/impl/codegen/proto_utils.h"
#endif
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/proto_buffer_writer.h"

#include "base/status.h"
#include "wire/limits.h"
#include "wire/unfolded.h"

namespace prefixd::daemon {

absl::StatusOr<uint64_t> UnfoldedBytes(const google::protobuf::Descriptor& type,
                                       const grpc::ByteBuffer& message, const MessageLimit& limit) {
  if (message.Length() > limit.bytes) {
    return absl::InvalidArgumentError(absl::StrCat(type.name(), ": ", message.Length(),
                                                   " bytes, at most ", limit.bytes,
                                                   " of such a message"));
  }
  grpc::ByteBuffer bytes = message;  // shares the slices
  grpc::ProtoBufferReader reader(&bytes);
  return wire::UnfoldedBytes(type, &reader, limit.unfolded_bytes);
}

absl::Status Parse(grpc::ByteBuffer* message, google::protobuf::Message* parsed) {
  const grpc::Status status =
      grpc::GenericDeserialize<grpc::ProtoBufferReader, google::protobuf::Message>(message, parsed);
  if (status.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the request is no ", parsed->GetDescriptor()->name()));
}

absl::Status ReadSmall(const grpc::ByteBuffer& message, google::protobuf::Message* parsed) {
  PREFIXD_RETURN_IF_ERROR(
      UnfoldedBytes(*parsed->GetDescriptor(), message, LimitOf(wire::kMaxMessageBytes)).status());
  grpc::ByteBuffer bytes = message;
  return Parse(&bytes, parsed);
}

grpc::Status Write(const google::protobuf::Message& message, grpc::ByteBuffer* written) {
  bool own = false;
  return grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::Message>(message,
                                                                                    written, &own);
}

}  // namespace prefixd::daemon
