// Fetch: the pages of a lease as bytes, cut to the token.
#include <algorithm>

#include "base/checksum.h"
#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {
namespace {

// Sends one page in pieces. False: the receiver is gone.
bool SendPage(const index::PageInfo& page, std::span<const std::byte> bytes, FetchSink* sink) {
  for (uint64_t offset = 0; offset < bytes.size(); offset += kMaxPiece) {
    const std::span<const std::byte> data =
        bytes.subspan(offset, std::min<uint64_t>(kMaxPiece, bytes.size() - offset));
    if (!sink->Page({.group = page.ref.group,
                     .first_token = page.first_token,
                     .tokens = page.tokens,
                     .rung = page.ref.rung,
                     .page_bytes = bytes.size(),
                     .offset = offset,
                     .xxh3 = base::Xxh3(data),
                     .data = data})) {
      return false;
    }
  }
  return true;
}

block::ShortenReason ReasonOf(const index::PageInfo& page, base::Deadline deadline) {
  if (page.state == index::PageState::kGone) return block::ShortenReason::kCorrupt;
  return std::chrono::steady_clock::now() >= deadline ? block::ShortenReason::kDeadline
                                                      : block::ShortenReason::kIoError;
}

}  // namespace

absl::Status Cache::Fetch(block::SessionId session, const FetchRequest& request,
                          base::Deadline deadline, FetchSink* sink) {
  PREFIXD_ASSIGN_OR_RETURN(const LeasePtr lease, core_->FindLease(session, request.lease));
  const uint32_t first_block = request.from_token / lease->space->identity.block_tokens *
                               lease->space->identity.block_tokens;
  std::vector<std::byte> cut;
  for (size_t i = 0; i < lease->pages.size(); ++i) {
    const index::PageInfo& leased = lease->pages[i];
    const uint32_t group = leased.ref.group;
    const bool wanted = request.groups.empty() || std::ranges::count(request.groups, group) > 0;
    if (!wanted) continue;
    if (leased.first_token >= first_block) {
      const index::PageInfo page = core_->index->WaitWhilePromoting(leased.ref, deadline);
      if (!index::InRam(page.state)) {
        const block::ShortenReason reason = ReasonOf(page, deadline);
        core_->counters.Add(std::string("shortened.") + ToString(reason));
        core_->counters.Add(std::string("tokens.lost.") + ToString(reason),
                            lease->tokens - leased.first_token);
        sink->Ready({.group = group, .usable_tokens = leased.first_token, .reason = reason});
        return absl::OkStatus();
      }
      std::span<const std::byte> bytes(core_->arena->data(page.extent), page.page_bytes);
      if (leased.tokens < page.name.tokens) {
        const block::LayerGroup& layers = lease->space->identity.groups[group];
        cut.resize(block::LayoutOfPage(layers, leased.ref.rung, leased.tokens).page_bytes);
        block::CutPage(layers, leased.ref.rung, bytes.data(), page.name.tokens, leased.tokens,
                       cut.data());
        bytes = cut;
      }
      InFlight in_flight(&core_->in_flight_bytes, std::min<uint64_t>(bytes.size(), kMaxPiece));
      if (!SendPage(leased, bytes, sink))
        return absl::CancelledError("fetch: the receiver is gone");
      core_->counters.Add("bytes.delivered", bytes.size());
    }
    const bool last_of_group =
        i + 1 == lease->pages.size() || lease->pages[i + 1].ref.group != group;
    if (last_of_group && !sink->Ready({.group = group, .usable_tokens = lease->tokens})) {
      return absl::CancelledError("fetch: the receiver is gone");
    }
  }
  core_->counters.Add("tokens.delivered", lease->tokens);
  core_->counters.Add("tokens.delivered.ssd", lease->ssd_tokens);
  core_->counters.Add("tokens.delivered.ram", lease->tokens - lease->ssd_tokens);
  return absl::OkStatus();
}

}  // namespace prefixd::cache
