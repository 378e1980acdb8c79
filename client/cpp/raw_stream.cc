#include "raw_stream.h"

#include <grpcpp/client_context.h>

#include <cstdlib>
#include <vector>

namespace prefixd::client {

namespace {

// gRPC receives into blocks of a megabyte from malloc. At first glibc hands such blocks back to the
// kernel when they are freed, and every piece pays for its pages anew: a third of what a Fetch
// costs this process. Once a larger block has been freed, glibc keeps as much; see M_MMAP_THRESHOLD
// in mallopt(3). Other allocators are not changed by this.
void KeepReceiveMemory() {
  constexpr size_t kKept = size_t{16} << 20;
  [[maybe_unused]] static const bool once = [] {
    void* volatile block = std::malloc(kKept);  // volatile: else the compiler leaves both calls out
    std::free(block);
    return true;
  }();
}

}  // namespace

RawStream::RawStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     grpc::ClientContext* context)
    : context_(context), stub_(channel), call_(stub_.PrepareCall(context, method, &queue_)) {
  KeepReceiveMemory();
  call_->StartCall(this);
  open_ = Done();
}

RawStream::~RawStream() {
  if (!finished_) {
    context_->TryCancel();
    Finish();
  }
  queue_.Shutdown();
  void* tag = nullptr;
  for (bool ok = false; queue_.Next(&tag, &ok);) {
  }
}

bool RawStream::Done() {
  void* tag = nullptr;
  bool ok = false;
  return queue_.Next(&tag, &ok) && ok;
}

bool RawStream::Write(const grpc::ByteBuffer& message, bool last) {
  if (!open_) return false;
  if (last) {
    call_->WriteLast(message, grpc::WriteOptions(), this);
  } else {
    call_->Write(message, this);
  }
  open_ = Done();
  return open_;
}

bool RawStream::WritesDone() {
  if (!open_) return false;
  call_->WritesDone(this);
  open_ = Done();
  return open_;
}

bool RawStream::Read(grpc::ByteBuffer* message) {
  if (!open_) return false;
  call_->Read(message, this);
  open_ = Done();
  return open_;
}

grpc::Status RawStream::Finish() {
  grpc::Status status;
  finished_ = true;
  call_->Finish(&status, this);
  Done();
  return status;
}

grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return {&slice, 1};
}

bool Parse(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite* message) {
  std::vector<grpc::Slice> slices;
  if (!bytes.Dump(&slices).ok()) return false;
  std::string flat;
  for (const grpc::Slice& slice : slices) {
    flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return message->ParseFromString(flat);
}

}  // namespace prefixd::client
