// Acquire: match, lease, and start loading what is on SSD. Release: give back, and say what it was
// worth.
#include <algorithm>

#include "base/status.h"
#include "cache/core.h"
#include "cache/request.h"

namespace prefixd::cache {
namespace {

// Indexes into pages (group by group) in position order, so that what fits is a prefix.
std::vector<size_t> ByPosition(const std::vector<index::PageInfo>& pages) {
  std::vector<size_t> order(pages.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return pages[a].first_token < pages[b].first_token; });
  return order;
}

void CutTo(uint32_t tokens, std::vector<index::PageInfo>* pages) {
  std::erase_if(*pages,
                [tokens](const index::PageInfo& page) { return page.first_token >= tokens; });
}

std::vector<block::LeasedPage> Leased(const std::vector<index::PageInfo>& pages) {
  std::vector<block::LeasedPage> leased;
  leased.reserve(pages.size());
  for (const index::PageInfo& page : pages) {
    leased.push_back({.group = page.ref.group,
                      .rung = page.ref.rung,
                      .first_token = page.first_token,
                      .page_tokens = page.name.tokens,
                      .tokens = page.tokens,
                      .in_ram = index::InRam(page.state)});
  }
  return leased;
}

void SumTiers(const std::vector<index::PageInfo>& pages, block::MatchAnswer* answer) {
  answer->ram_bytes = answer->ssd_bytes = 0;
  for (const index::PageInfo& page : pages) {
    (index::InRam(page.state) ? answer->ram_bytes : answer->ssd_bytes) += page.page_bytes;
  }
}

// Tokens of blocks that have a page outside RAM.
uint32_t SsdTokens(const std::vector<index::PageInfo>& pages) {
  std::map<uint32_t, uint32_t> blocks;  // first token -> tokens
  for (const index::PageInfo& page : pages) {
    if (!index::InRam(page.state)) blocks[page.first_token] = page.tokens;
  }
  uint32_t tokens = 0;
  for (const auto& [first, count] : blocks) tokens += count;
  return tokens;
}

}  // namespace

absl::StatusOr<Acquired> Cache::Acquire(block::SessionId session, const Request& request,
                                        base::Deadline deadline) {
  if (!core_->HasSession(session))
    return absl::NotFoundError("acquire: unknown session, attach first");
  PREFIXD_ASSIGN_OR_RETURN(const SpacePtr space, core_->FindSpace(request.space));
  PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
  PREFIXD_RETURN_IF_ERROR(CheckSelection(*space, request.groups, request.readable));
  index::Acquired held = core_->index->Acquire(request.space, {request.tokens, request.content},
                                               OptionsOf(request), session);

  // Every extent is allocated before the first read, or the answer is shorter: nobody waits
  // holding.
  std::vector<Promotion> promotions(held.pages.size());
  const auto now = std::chrono::steady_clock::now();
  const base::Deadline patience =
      now + (std::max(deadline, now) - now) / 2;  // the other half is for loading
  for (size_t i : ByPosition(held.pages)) {
    const index::PageInfo& page = held.pages[i];
    if (page.state != index::PageState::kSsd || !core_->index->BeginPromotion(page.ref)) continue;
    absl::StatusOr<block::Extent> extent = core_->AllocateExtent(
        page.page_bytes, space->FullPageBytes(page.ref.group, page.ref.rung), patience);
    if (extent.ok()) {
      promotions[i] = {page, *extent,
                       static_cast<uint64_t>(core_->options.clock->MonotonicMicros())};
      continue;
    }
    core_->index->FailPromotion(page.ref, index::PrefixIndex::PromotionFailure::kTryAgain);
    const uint32_t fits = page.first_token;
    held.answer.shortened_by.push_back({.group = page.ref.group,
                                        .reason = block::ShortenReason::kRamFull,
                                        .tokens_lost = held.answer.restorable_tokens - fits});
    held.answer.restorable_tokens = fits;
    break;
  }
  // Reads start even for pages cut off below: they were given room, and somebody may want them
  // next.
  size_t queued = 0;
  {
    base::MutexLock lock(core_->promote_mutex);
    for (Promotion& promotion : promotions) {
      if (!promotion.extent) continue;
      core_->promote_queue.push_back(std::move(promotion));
      ++queued;
    }
  }
  if (queued > 0) core_->promote_wake.NotifyAll();

  if (held.lease && held.answer.restorable_tokens == 0) {
    PREFIXD_RETURN_IF_ERROR(core_->index->Release(held.lease));
    held.lease = {};
    held.pages.clear();
  } else if (held.lease) {
    PREFIXD_RETURN_IF_ERROR(core_->index->ShrinkLease(held.lease, held.answer.restorable_tokens));
    CutTo(held.answer.restorable_tokens, &held.pages);
  }
  SumTiers(held.pages, &held.answer);
  held.answer.load_us =
      core_->load_model.EstimateMicros(held.answer.ram_bytes, held.answer.ssd_bytes);
  core_->CountMatch(held.answer, request.tokens.size());
  core_->FreeTaken();

  Acquired acquired{held.answer, held.lease, Leased(held.pages)};
  if (!held.lease) return acquired;
  auto lease = std::make_shared<Lease>(core_.get(), held.lease);
  lease->session = session;
  lease->space = space;
  lease->pages = std::move(held.pages);
  lease->tokens = held.answer.restorable_tokens;
  lease->ssd_tokens = SsdTokens(lease->pages);
  lease->ram_bytes = held.answer.ram_bytes;
  lease->ssd_bytes = held.answer.ssd_bytes;
  core_->counters.Add("tokens.restorable.ssd", lease->ssd_tokens);
  core_->counters.Add("tokens.restorable.ram", lease->tokens - lease->ssd_tokens);
  base::MutexLock lock(core_->mutex);
  if (!core_->sessions.contains(session)) return absl::NotFoundError("acquire: the session ended");
  core_->leases[held.lease] = std::move(lease);
  return acquired;
}

absl::Status Cache::Release(block::SessionId session, const Released& released) {
  PREFIXD_ASSIGN_OR_RETURN(const LeasePtr lease, core_->FindLease(session, released.lease));
  {
    base::MutexLock lock(core_->mutex);
    core_->leases.erase(released.lease);
  }
  const uint32_t used = std::min(released.used_tokens, lease->tokens);
  core_->counters.Add("tokens.used", used);
  if (released.load_us > 0) {
    core_->load_model.Learn(lease->ram_bytes, lease->ssd_bytes, released.load_us);
    core_->counters.Time("load", released.load_us);
  }
  if (released.first_token_us > 0) core_->counters.Time("first_token", released.first_token_us);
  if (released.prefill_tokens_per_s > 0) {
    core_->counters.AddSecondsSaved(used / released.prefill_tokens_per_s -
                                    static_cast<double>(released.load_us) * 1e-6);
  }
  return absl::OkStatus();
}

}  // namespace prefixd::cache
