#include "wire/request.h"

#include <cmath>

#include "block/layer_group.h"
#include "block/space_identity.h"
#include "wire/fields.h"
#include "wire/limits.h"

namespace prefixd::wire {
namespace {

absl::Status CheckGroups(const std::string& field, int groups) {
  return CheckCount(field, static_cast<uint64_t>(groups), block::kMaxGroups);
}

absl::Status CheckRate(const std::string& field, double rate) {
  if (std::isfinite(rate) && rate >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", rate, ", must be finite and at least 0"));
}

absl::Status CheckItem(const v1::AcquireRequest::Item& item) {
  PREFIXD_RETURN_IF_ERROR(
      CheckLength("acquire: request_id", item.request_id().size(), kMaxRequestIdBytes));
  PREFIXD_RETURN_IF_ERROR(CheckGroups("acquire: groups", item.groups_size()));
  PREFIXD_RETURN_IF_ERROR(CheckGroups("acquire: readable", item.readable_size()));
  PREFIXD_RETURN_IF_ERROR(CheckGroups("acquire: writable", item.writable_size()));
  PREFIXD_RETURN_IF_ERROR(
      CheckCount("acquire: turn_ends", static_cast<uint64_t>(item.turn_ends_size()), kMaxEnds));
  return CheckRate("acquire: prefill_tokens_per_s", item.prefill_tokens_per_s());
}

absl::Status CheckStaged(const v1::StagedPages& staged) {
  const int pages = staged.first_token_size();
  if (staged.group() >= block::kMaxGroups || staged.rung_size() != pages ||
      staged.offset_size() != pages) {
    return absl::InvalidArgumentError(
        absl::StrCat("commit: staged group ", staged.group(), " (below ", block::kMaxGroups,
                     ") has columns of ", pages, " first_token, ", staged.rung_size(), " rung and ",
                     staged.offset_size(), " offset"));
  }
  for (const uint64_t offset : staged.offset()) {
    if (offset % kStagingAlignment == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("commit: staged offset ", offset,
                                                   " is not a multiple of ", kStagingAlignment));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Check(const v1::AttachRequest& request) {
  if (request.protocol() != kProtocol) {
    return absl::InvalidArgumentError(absl::StrCat("attach: protocol is ", request.protocol(),
                                                   ", this daemon speaks ", kProtocol));
  }
  PREFIXD_RETURN_IF_ERROR(CheckLength("attach: worker", request.worker().size(), kMaxWorkerBytes));
  PREFIXD_RETURN_IF_ERROR(
      CheckLength("attach: library", request.library().size(), kMaxWorkerBytes));
  const size_t key = request.resume().size();
  if (key == 0 || key == kSessionKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("attach: resume has ", key, " bytes, wants ", kSessionKeyBytes, " or none"));
}

absl::Status Check(const v1::NotSharedRequest& request) {
  if (request.model().empty()) return absl::InvalidArgumentError("not_shared: model is empty");
  PREFIXD_RETURN_IF_ERROR(
      CheckLength("not_shared: model", request.model().size(), block::kMaxModelBytes));
  return CheckLength("not_shared: reason", request.reason().size(), kMaxReasonBytes);
}

absl::Status Check(const v1::AcquireRequest& request) {
  PREFIXD_RETURN_IF_ERROR(
      CheckCount("acquire: items", static_cast<uint64_t>(request.items_size()), kMaxItems));
  for (const v1::AcquireRequest::Item& item : request.items())
    PREFIXD_RETURN_IF_ERROR(CheckItem(item));
  for (const v1::Released& released : request.release()) PREFIXD_RETURN_IF_ERROR(Check(released));
  return absl::OkStatus();
}

absl::Status Check(const v1::Released& released) {
  return CheckRate("release: prefill_tokens_per_s", released.prefill_tokens_per_s());
}

absl::Status Check(const v1::ReserveRequest& request) {
  PREFIXD_RETURN_IF_ERROR(CheckGroups("reserve: groups", request.groups_size()));
  PREFIXD_RETURN_IF_ERROR(
      CheckCount("reserve: turn_ends", static_cast<uint64_t>(request.turn_ends_size()), kMaxEnds));
  return CheckGroups("reserve: writable", request.writable_size());
}

absl::Status Check(const v1::CommitRequest& request) {
  PREFIXD_RETURN_IF_ERROR(
      CheckCount("commit: ends", static_cast<uint64_t>(request.ends_size()), kMaxEnds));
  PREFIXD_RETURN_IF_ERROR(CheckGroups("commit: staged", request.staged_size()));
  for (const v1::StagedPages& staged : request.staged())
    PREFIXD_RETURN_IF_ERROR(CheckStaged(staged));
  return absl::OkStatus();
}

absl::Status Check(const v1::FetchRequest& request) {
  return CheckGroups("fetch: groups", request.groups_size());
}

absl::Status Check(const v1::PinRequest& request) {
  constexpr uint64_t kCenturyMs = uint64_t{100} * 365 * 24 * 3600 * 1000;
  if (request.ttl_ms() <= kCenturyMs) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("pin: ttl_ms is ", request.ttl_ms(),
                                                 ", at most a hundred years or 0 for no end"));
}

}  // namespace prefixd::wire
