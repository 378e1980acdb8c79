// A streaming call whose messages are bytes: for pages, which travel between the socket and their
// place in memory with one copy and no message object. On the wire they are the proto's messages.
//
// Used by one thread. Any thread may cancel the context.
#pragma once
#include <grpcpp/channel.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <string>

#include "google/protobuf/message_lite.h"

namespace prefixd::client {

class RawStream {
 public:
  // Begins the call. `channel`: a connection for streams of pages alone, so that only the thread
  // that reads a stream waits on it and receives the pages itself. `method`:
  // "/prefixd.v1.PrefixCache/Fetch". `context` must outlive this object and have a deadline, which
  // ends every wait below.
  RawStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
            grpc::ClientContext* context);
  ~RawStream();  // cancels a call that was not finished
  RawStream(const RawStream&) = delete;
  RawStream& operator=(const RawStream&) = delete;

  // These return false if the call is over; Finish() says why.
  bool Write(const grpc::ByteBuffer& message, bool last = false);
  bool WritesDone();
  bool Read(grpc::ByteBuffer* message);
  // Call it once. Requires: everything was read, or the call was cancelled.
  grpc::Status Finish();

 private:
  // Waits for the one operation under way. Returns false if it failed.
  bool Done();

  grpc::ClientContext* const context_;
  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool open_ = false;
  bool finished_ = false;
};

grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message);
bool Parse(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite* message);

}  // namespace prefixd::client
