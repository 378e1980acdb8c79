#include "daemon/dispatch.h"

#include "absl/strings/str_cat.h"

namespace prefixd::daemon {
namespace {

constexpr int kAdminThreads = 16;
constexpr int kLaterThreads = 4;

}  // namespace

Dispatch::Dispatch(cache::Cache* cache, int threads, const StreamPatience& streams)
    : cache_(cache),
      most_here_(wire::CallbackThreads() - 1),
      patience_(streams),
      wait_shares_(2 * static_cast<size_t>(threads), kMaxUnfoldedBytes),
      call_shares_(2 * static_cast<size_t>(threads), kMaxUnfoldedBytes),
      stream_shares_(2 * static_cast<size_t>(threads)),
      later_("prefixd later", kLaterThreads),
      long_(wire::CallbackThreads(), kMaxUnfoldedBytes),
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

std::shared_ptr<void> Dispatch::Running() { return running_; }

}  // namespace prefixd::daemon
