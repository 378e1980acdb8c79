#include "wire/request.h"

#include <cmath>

#include "block/layer_group.h"
#include "wire/fields.h"
#include "wire/limits.h"

namespace prefixd::wire {
namespace {

absl::Status CheckGroups(const std::string& field, int groups) {
  return CheckCount(field, static_cast<uint64_t>(groups), block::kMaxGroups);
}

}  // namespace

absl::Status Check(const v1::AttachRequest& request) {
  if (request.protocol() != kProtocol) {
    return absl::InvalidArgumentError(absl::StrCat("attach: protocol is ", request.protocol(),
                                                   ", this daemon speaks ", kProtocol));
  }
  PREFIXD_RETURN_IF_ERROR(CheckLength("attach: worker", request.worker().size(), kMaxWorkerBytes));
  return CheckLength("attach: library", request.library().size(), kMaxWorkerBytes);
}

absl::Status Check(const v1::AcquireRequest& request) {
  PREFIXD_RETURN_IF_ERROR(
      CheckCount("acquire: items", static_cast<uint64_t>(request.items_size()), kMaxItems));
  for (const v1::AcquireRequest::Item& item : request.items()) {
    PREFIXD_RETURN_IF_ERROR(
        CheckLength("acquire: request_id", item.request_id().size(), kMaxRequestIdBytes));
    PREFIXD_RETURN_IF_ERROR(CheckGroups("acquire: groups", item.groups_size()));
    PREFIXD_RETURN_IF_ERROR(CheckGroups("acquire: readable", item.readable_size()));
  }
  for (const v1::Released& released : request.release()) PREFIXD_RETURN_IF_ERROR(Check(released));
  return absl::OkStatus();
}

absl::Status Check(const v1::Released& released) {
  const double rate = released.prefill_tokens_per_s();
  if (std::isfinite(rate) && rate >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("release: prefill_tokens_per_s is ", rate, ", must be finite and at least 0"));
}

absl::Status Check(const v1::ReserveRequest& request) {
  PREFIXD_RETURN_IF_ERROR(CheckGroups("reserve: groups", request.groups_size()));
  return CheckGroups("reserve: writable", request.writable_size());
}

absl::Status Check(const v1::CommitRequest& request) {
  return CheckCount("commit: ends", static_cast<uint64_t>(request.ends_size()), kMaxTokens);
}

absl::Status Check(const v1::FetchRequest& request) {
  return CheckGroups("fetch: groups", request.groups_size());
}

}  // namespace prefixd::wire
