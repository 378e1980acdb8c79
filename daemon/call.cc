#include "daemon/call.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

#include "base/status.h"
#include "base/utf8.h"

namespace prefixd::daemon {
namespace {

const char* RefusalName(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return "refused.bad_request";
    case absl::StatusCode::kNotFound:
      return "refused.not_found";
    case absl::StatusCode::kResourceExhausted:
      return "refused.exhausted";
    case absl::StatusCode::kFailedPrecondition:
      return "refused.gone";
    case absl::StatusCode::kCancelled:
      return "refused.cancelled";
    case absl::StatusCode::kDeadlineExceeded:
      return "refused.deadline";
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return "refused.denied";
    case absl::StatusCode::kUnavailable:
      return "refused.stopping";
    default:
      return "refused.internal";
  }
}

}  // namespace

base::Deadline DeadlineOf(const grpc::ServerContextBase& context, std::chrono::seconds longest) {
  return DeadlineOf(context.raw_deadline(), longest);
}

// Counts in seconds until the very end: in nanoseconds, more than 292 years would overflow.
base::Deadline DeadlineOf(gpr_timespec deadline, std::chrono::seconds longest) {
  const auto now = std::chrono::steady_clock::now();
  if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0)
    return now + std::min(kDefaultDeadline, longest);
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  if (left.tv_sec >= longest.count()) return now + longest;
  if (left.tv_sec < 0) return now;
  return now + std::chrono::seconds(left.tv_sec) + std::chrono::nanoseconds(left.tv_nsec);
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

uint64_t Call::elapsed_us() const {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::steady_clock::now() - start_)
                                   .count());
}

grpc::Status Call::End(const absl::Status& status) {
  cache_->Count(name_);
  cache_->CountLatency(name_, elapsed_us());
  if (!status.ok()) {
    const char* const refusal = RefusalName(status.code());
    cache_->Count(refusal);
    cache_->Count(absl::StrCat(name_, ".", refusal).c_str());
    spdlog::info("{} refused {}", name_, base::Printable(status.ToString()));
  }
  return ToGrpc(status);
}

}  // namespace prefixd::daemon
