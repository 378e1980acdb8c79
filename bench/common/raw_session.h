// One worker's session at the level of the wire: what the client library does, without it, so that
// every RPC can be timed alone. Verified and written against proto/prefixd/v1/prefix_cache.proto.
//
// One thread, beside the session's own that reads its event stream. Not before fork().
#pragma once
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "block/space_identity.h"
#include "client/cpp/arena_mapping.h"
#include "client/cpp/page_memory.h"
#include "client/cpp/raw_stream.h"
#include "prefixd/v1/prefix_cache.grpc.pb.h"
#include "wire/bearer.h"
#include "wire/bulk_channel.h"
#include "wire/grpc_status.h"

namespace prefixd::bench {

using wire::FromGrpc;

void SetDeadline(grpc::ClientContext* context, std::chrono::milliseconds patience);

// With a connection of its own; null for an address that wire::TargetOf refuses. `bearer`: whose
// token goes with every call, or null.
std::shared_ptr<grpc::Channel> OpenChannel(
    const std::string& address, wire::ConnectionWindow window = wire::ConnectionWindow::kNarrow,
    const std::shared_ptr<const wire::Bearer>& bearer = nullptr);

class RawSession {
 public:
  struct Options {
    std::string address;  // "unix:///...", "127.0.0.1:7777", "tls://127.0.0.1:7777"
    std::string name = "bench";
    bool wants_arena = true;
    uint64_t staging_bytes = 0;
    std::string token_file = {};  // over TCP
  };
  // Internal when the daemon breaks its word, the daemon's own error otherwise.
  static absl::StatusOr<std::unique_ptr<RawSession>> Open(const Options& options);
  ~RawSession();  // ends the session
  void End();     // as a worker that goes and keeps its mappings; nothing may be asked any more

  v1::PrefixCache::Stub& stub() { return *stub_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  const std::shared_ptr<grpc::Channel>& page_channel() const { return page_channel_; }
  const std::string& address() const { return address_; }
  uint64_t id() const { return attached_.session(); }
  const v1::Attached& attached() const { return attached_; }

  absl::StatusOr<uint64_t> OpenSpace(const block::SpaceIdentity& identity);

  // Place `offset` of the arena's data, read-only. Requires: attached().arena().
  const std::byte* page(uint64_t offset) const { return arena_->data() + offset; }
  std::span<std::byte> staging() const {
    return {staging_.get(), staging_ ? attached_.staging_bytes() : 0};
  }

  absl::StatusOr<v1::AcquireReply> Acquire(const v1::AcquireRequest& request);
  absl::Status Release(const std::vector<uint64_t>& leases);
  // Waits until the lease's pages are all readable, and fills in the places that the answer did not
  // tell. DeadlineExceeded after 60 s; DataLoss when a group failed.
  absl::Status WaitReady(uint32_t block_tokens, v1::Answer* answer) PREFIXD_EXCLUDES(mutex_);
  // The same for one group, whose places are left to WaitReady.
  absl::Status WaitGroupReady(const v1::Answer& answer, uint32_t group) PREFIXD_EXCLUDES(mutex_);

 private:
  RawSession() = default;
  absl::Status Attach(const Options& options);
  absl::Status ReceiveFiles(const std::string& address);
  void ReadEvents() PREFIXD_EXCLUDES(mutex_);
  absl::StatusOr<v1::LeaseReady> WaitFor(uint64_t lease, uint32_t group) PREFIXD_EXCLUDES(mutex_);

  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<grpc::Channel> page_channel_;
  std::string address_;
  std::unique_ptr<v1::PrefixCache::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::SessionEvent>> events_;
  v1::Attached attached_;
  uint64_t epoch_ = 0;
  std::thread reader_;
  std::shared_ptr<const client::ArenaMapping> arena_;  // and the lock on what the session holds
  client::PageMemory staging_;                         // all of it

  mutable base::Mutex mutex_;
  base::CondVar changed_;
  std::map<std::pair<uint64_t, uint32_t>, v1::LeaseReady> ready_ PREFIXD_GUARDED_BY(mutex_);
  std::map<uint64_t, v1::LeaseFailed> failed_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::bench
