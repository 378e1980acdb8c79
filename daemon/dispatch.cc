#include "daemon/dispatch.h"

#include "absl/strings/str_cat.h"

namespace prefixd::daemon {

Dispatch::Dispatch(cache::Cache* cache, int threads)
    : cache_(cache),
      most_here_(wire::CallbackThreads() - 1),
      calls_("prefixd calls", threads),
      streams_("prefixd pages", threads) {}

grpc::Status Dispatch::Refuse() {
  cache_->Count("refused.exhausted");
  return grpc::Status(
      grpc::StatusCode::RESOURCE_EXHAUSTED,
      absl::StrCat("prefixd: ", calls_.most(), " such calls are served already; try again later"));
}

std::shared_ptr<void> Dispatch::Running() { return running_; }

}  // namespace prefixd::daemon
