#include "daemon/dispatch.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"

namespace prefixd::daemon {
namespace {

// gRPC 1.51 runs callbacks on a thread for every two cores, at least 2 and at most 16.
int CallbackThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 2, 16);
}
constexpr int kAdminThreads = 16;
constexpr int kLaterThreads = 4;
constexpr size_t kLongRequests = 1'024;  // held at a time
// Memory for all long requests, from arrival to answer. A process alone gets the largest one.
uint64_t LongBytes(const MessageLimit& one) { return one.unfolded_bytes / 5 * 6; }
constexpr uint64_t kWaitingBytes = uint64_t{4} << 20;  // memory of short requests that wait

}  // namespace

Dispatch::Dispatch(cache::Cache* cache, int threads, uint64_t token_message_bytes,
                   const StreamPatience& streams, Tracer* tracer)
    : cache_(cache),
      tracer_(tracer),
      most_here_(CallbackThreads() - 1),
      patience_(streams),
      token_limit_(LimitOf(token_message_bytes)),
      wait_shares_(2 * static_cast<size_t>(threads), kWaitingBytes),
      call_shares_(2 * static_cast<size_t>(threads), kWaitingBytes),
      stream_shares_(2 * static_cast<size_t>(threads)),
      long_memory_(kLongRequests, LongBytes(token_limit_)),
      later_("prefixd later", kLaterThreads),
      long_(CallbackThreads(), token_limit_.unfolded_bytes),
      waits_("prefixd waits", 2 * threads),
      calls_("prefixd calls", 2 * threads),
      streams_("prefixd pages", 2 * threads),
      admin_("prefixd admin", kAdminThreads) {}

grpc::Status Dispatch::Refuse(size_t most) {
  cache_->Count("refused.exhausted");
  return grpc::Status(
      grpc::StatusCode::RESOURCE_EXHAUSTED,
      absl::StrCat("prefixd: ", most, " such calls are served already; try again later"));
}

grpc::Status Dispatch::RefuseShare(size_t most) {
  cache_->Count("refused.share");
  return grpc::Status(
      grpc::StatusCode::RESOURCE_EXHAUSTED,
      absl::StrCat("prefixd: of ", most,
                   " threads for such calls, or of the memory for their requests, this session, or "
                   "its host, has as much as it leaves to others; try again later"));
}

grpc::Status Dispatch::RefuseMemory() {
  cache_->Count("refused.share");
  return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                      absl::StrCat("prefixd: of ", LongBytes(token_limit_),
                                   " bytes for long requests this process, or host, has as much as "
                                   "it leaves to others; try again later"));
}

std::shared_ptr<void> Dispatch::Running() { return running_; }

}  // namespace prefixd::daemon
