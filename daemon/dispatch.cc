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

}  // namespace

Dispatch::Dispatch(cache::Cache* cache, int threads)
    : cache_(cache), most_here_(CallbackThreads() - 1), calls_(threads), streams_(threads) {}

grpc::Status Dispatch::Refuse() {
  cache_->Count("refused.exhausted");
  return grpc::Status(
      grpc::StatusCode::RESOURCE_EXHAUSTED,
      absl::StrCat("prefixd: ", calls_.most(), " such calls are served already; try again later"));
}

std::shared_ptr<void> Dispatch::Running() { return running_; }

}  // namespace prefixd::daemon
