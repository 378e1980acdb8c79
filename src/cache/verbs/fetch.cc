// Fetch: the pages of a lease as bytes, cut to the token.
#include <algorithm>

#include "base/checksum.h"
#include "base/status.h"
#include "cache/counting.h"
#include "cache/verbs/request.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {
namespace {

// A page, or as much of it as is leased, on its way out.
struct Outgoing {
  const index::PageInfo* leased = nullptr;
  std::span<const std::byte> bytes;
  bool in_lease = false;
  // Kept with the page, and the seed it was made with; 0: it has to be computed.
  uint64_t check = 0, check_seed = 0;
};

// In pieces. False: the receiver is gone.
bool SendPage(const Outgoing& page, FetchSink* sink) {
  for (uint64_t offset = 0; offset < page.bytes.size(); offset += kMaxPieceBytes) {
    const std::span<const std::byte> data =
        page.bytes.subspan(offset, std::min<uint64_t>(kMaxPieceBytes, page.bytes.size() - offset));
    if (!sink->Page({.group = page.leased->ref.group,
                     .first_token = page.leased->first_token,
                     .tokens = page.leased->tokens,
                     .rung = page.leased->ref.rung,
                     .page_bytes = page.bytes.size(),
                     .offset = offset,
                     .xxh3 = page.check != 0 ? page.check : base::Xxh3(data),
                     .sum_seed = page.check_seed,
                     .data = data,
                     .in_lease = page.in_lease})) {
      return false;
    }
  }
  return true;
}

class Sender {
 public:
  Sender(Context& context, const Loader& loader, const Refused& refused, const SpaceInfo& space,
         bool seeded_sums, const Patience& patience, FetchSink* sink)
      : context_(context),
        loader_(loader),
        refused_(refused),
        space_(space),
        seeded_sums_(seeded_sums),
        patience_(patience),
        sink_(sink) {}

  // False: the page is not to be had, why() says why not. Cancelled: the receiver is gone.
  absl::StatusOr<bool> Send(const index::PageInfo& leased) {
    const index::PageInfo page = loader_.Await(leased.ref, patience_);
    if (!index::InRam(page.state)) {
      const bool waits = page.state == index::PageState::kPromoting;
      why_ = waits ? block::ShortenReason::kDeadline : refused_.WhyNotInRam(page);
      return false;
    }
    std::span<const std::byte> bytes(context_.arena->data(page.extent), page.page_bytes);
    const bool cut = leased.tokens < page.name.tokens;
    if (cut) {
      const block::LayerGroup& layers = space_.identity.groups[leased.ref.group];
      cut_.resize(block::LayoutOfPage(layers, leased.ref.rung, leased.tokens).page_bytes);
      block::CutPage(layers, leased.ref.rung, bytes.data(), page.name.tokens, leased.tokens,
                     cut_.data());
      bytes = cut_;
    }
    InFlight in_flight(&context_.in_flight_bytes, std::min<uint64_t>(bytes.size(), kMaxPieceBytes));
    Outgoing outgoing{.leased = &leased, .bytes = bytes, .in_lease = !cut};
    // A check of 1 may stand for 0 (block/page_check.h): one page in 2^63 is summed again.
    if (seeded_sums_ && !cut && bytes.size() <= kMaxPieceBytes && page.check > 1) {
      outgoing.check = page.check;
      outgoing.check_seed = block::CheckSeed(page.name);
    }
    if (!SendPage(outgoing, sink_)) return absl::CancelledError(kGone);
    context_.counters.Add("bytes.delivered", bytes.size());
    return true;
  }
  absl::Status Ready(uint32_t group, uint32_t tokens) {
    if (sink_->Ready({.group = group, .usable_tokens = tokens})) return absl::OkStatus();
    return absl::CancelledError(kGone);
  }
  // The stream ends at the first page that is missing.
  void End(uint32_t group, uint32_t usable, uint32_t leased, block::ShortenReason reason) {
    CountShortened(reason, leased - usable, &context_.counters);
    sink_->Ready({.group = group, .usable_tokens = usable, .reason = reason});
  }
  block::ShortenReason why() const { return why_; }

 private:
  static constexpr const char* kGone = "fetch: the receiver is gone";
  Context& context_;
  const Loader& loader_;
  const Refused& refused_;
  const SpaceInfo& space_;
  const bool seeded_sums_;
  const Patience patience_;
  FetchSink* const sink_;
  std::vector<std::byte> cut_;
  block::ShortenReason why_ = block::ShortenReason::kIoError;
};

}  // namespace

absl::Status Fetch(Context& context, Sessions& sessions, const Loader& loader,
                   const Refused& refused, block::SessionId session, const FetchRequest& request,
                   const Patience& patience, FetchSink* sink) {
  PREFIXD_ASSIGN_OR_RETURN(const LeasePtr lease, sessions.FindLease(session, request.lease));
  if (lease->space == nullptr) {
    return absl::NotFoundError("fetch: this lease only holds what an earlier session may read");
  }
  PREFIXD_RETURN_IF_ERROR(CheckSelection(*lease->space, request.groups, {}));
  const LeaseFacts facts = lease->facts();
  PREFIXD_ASSIGN_OR_RETURN(
      const std::vector<index::PageInfo> pages,
      context.index->LeasedPages(lease->in_index(), request.groups, facts.tokens));
  const uint32_t block_tokens = lease->space->identity.block_tokens;
  const uint32_t first_block = request.from_token / block_tokens * block_tokens;
  Sender sender(context, loader, refused, *lease->space, request.seeded_sums, patience, sink);
  if (pages.empty()) {
    sender.End(request.groups.empty() ? 0 : request.groups.front(), 0, facts.tokens,
               block::ShortenReason::kCorrupt);
  }
  for (size_t i = 0; i < pages.size(); ++i) {
    const index::PageInfo& page = pages[i];
    const uint32_t group = page.ref.group;
    if (page.first_token >= first_block) {
      PREFIXD_ASSIGN_OR_RETURN(const bool sent, sender.Send(page));
      if (!sent) {
        // With sliding or state groups what is shorter needs pages that this lease does not hold.
        sender.End(group, lease->space->regular ? page.first_token : 0, facts.tokens, sender.why());
        return absl::OkStatus();
      }
    }
    const bool last_of_group = i + 1 == pages.size() || pages[i + 1].ref.group != group;
    if (last_of_group) PREFIXD_RETURN_IF_ERROR(sender.Ready(group, facts.tokens));
  }
  const uint32_t ssd_tokens = std::min(facts.tokens, facts.ssd_tokens);
  context.counters.AddAll({{"tokens.delivered", facts.tokens},
                           {"tokens.delivered.ssd", ssd_tokens},
                           {"tokens.delivered.ram", facts.tokens - ssd_tokens}});
  return absl::OkStatus();
}

}  // namespace prefixd::cache::verbs
