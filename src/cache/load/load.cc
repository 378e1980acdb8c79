// Starts loading what is not readable of a lease, or cuts the lease where loading does not pay.
#include <algorithm>
#include <utility>

#include "cache/load/loader.h"

namespace prefixd::cache {
namespace {

constexpr uint32_t kBordersLookedAt = 64;

// Indexes into pages (group by group) in position order, so that what fits is a prefix.
std::vector<size_t> ByPosition(const std::vector<index::PageInfo>& pages) {
  std::vector<size_t> order(pages.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return pages[a].first_token < pages[b].first_token; });
  return order;
}

void Shorten(uint32_t tokens, uint32_t group, block::ShortenReason reason,
             block::MatchAnswer* answer) {
  if (reason == block::ShortenReason::kCommonLength && !answer->shortened_by.empty() &&
      answer->shortened_by.back().reason == reason) {
    answer->shortened_by.back().tokens_lost += answer->restorable_tokens - tokens;
    answer->restorable_tokens = tokens;
    return;
  }
  answer->shortened_by.push_back(
      {.group = group, .reason = reason, .tokens_lost = answer->restorable_tokens - tokens});
  answer->restorable_tokens = tokens;
}

// Computing a token costs the sum over the members that tell their rate. 0: none does.
double RateOf(std::span<const SetMember> members) {
  double seconds = 0;
  for (const SetMember& member : members) {
    const double rate = member.request->prefill_tokens_per_s;
    if (rate > 0) seconds += 1 / rate;
  }
  return seconds > 0 ? 1 / seconds : 0;
}

uint32_t FinestBlocks(std::span<const SetMember> members) {
  uint32_t finest = members.front().space->identity.block_tokens;
  for (const SetMember& member : members) {
    finest = std::min(finest, member.space->identity.block_tokens);
  }
  return finest;
}

// Replaces a lease by a shorter one and charges the lost tokens to the request that caused it.
void TakeShorter(uint32_t shortest, index::Acquired shorter, index::Acquired* held) {
  const uint32_t tokens = shorter.lease ? shorter.answer.restorable_tokens : 0;
  if (held->answer.restorable_tokens == shortest) {
    held->answer.shortened_by.back().tokens_lost += shortest - tokens;
    held->answer.restorable_tokens = tokens;
  } else {
    Shorten(tokens, block::kAllGroups, block::ShortenReason::kCommonLength, &held->answer);
  }
  held->lease = shorter.lease;
  held->pages = std::move(shorter.pages);
  held->table = std::move(shorter.table);
  held->from_token = shorter.from_token;
}

}  // namespace

void Loader::CutWhatDoesNotPay(uint32_t block_tokens, double tokens_per_s,
                               std::span<index::Acquired> held) const {
  const uint32_t end = held.front().answer.restorable_tokens;
  std::vector<uint64_t> ssd_bytes((end + block_tokens - 1) / block_tokens);  // of each block
  for (const index::Acquired& one : held) {
    for (const index::PageInfo& page : one.pages) {
      if (NeedsSsd(page)) ssd_bytes[page.first_token / block_tokens] += page.page_bytes;
    }
  }
  const auto first = std::ranges::find_if(ssd_bytes, [](uint64_t bytes) { return bytes > 0; });
  if (first == ssd_bytes.end()) return;
  const auto begin_block = static_cast<uint32_t>(first - ssd_bytes.begin());
  const auto blocks = static_cast<uint32_t>(ssd_bytes.size());
  const uint32_t step = std::max(1u, (blocks - begin_block) / kBordersLookedAt);
  uint32_t best = begin_block * block_tokens;
  double best_saved = best / tokens_per_s;
  uint64_t bytes = 0;
  for (uint32_t block = begin_block; block < blocks; ++block) {
    bytes += ssd_bytes[block];
    if ((block - begin_block) % step != 0 && block + 1 < blocks) continue;
    const uint32_t tokens = std::min((block + 1) * block_tokens, end);
    const double saved =
        tokens / tokens_per_s - static_cast<double>(model.EstimateMicros(0, bytes)) * 1e-6;
    if (saved < best_saved || tokens <= best) continue;
    best = tokens;
    best_saved = saved;
  }
  if (best >= end) return;
  for (index::Acquired& one : held) {
    Shorten(best, block::kAllGroups, block::ShortenReason::kSlowerThanPrefill, &one.answer);
  }
}

void Loader::StartAll(block::SessionId session, std::span<const SetMember> members,
                      const Patience& patience, std::vector<index::Acquired>* held) {
  const auto readable = [](const index::Acquired& one) {
    return std::ranges::all_of(
        one.pages, [](const index::PageInfo& page) { return index::InRam(page.state); });
  };
  double rate = RateOf(members);
  while (held->front().lease && !std::ranges::all_of(*held, readable)) {
    const uint32_t before = held->front().answer.restorable_tokens;
    if (const double weighed = std::exchange(rate, 0); weighed > 0) {
      CutWhatDoesNotPay(FinestBlocks(members), weighed, *held);
    }
    uint32_t shortest = held->front().answer.restorable_tokens;
    if (shortest == before) {
      for (size_t i = 0; i < members.size(); ++i) {
        Start(*members[i].space, patience, &(*held)[i]);
        shortest = std::min(shortest, (*held)[i].answer.restorable_tokens);
      }
    }
    if (shortest == before) return;
    std::vector<index::SetItem> items;
    for (const SetMember& member : members) {
      items.push_back(member.item);
      items.back().options.max_tokens = std::min(items.back().options.max_tokens, shortest);
    }
    std::vector<index::Acquired> shorter = context_->index->AcquireSet(items, session);
    for (size_t i = 0; i < members.size(); ++i) {
      index::Acquired& one = (*held)[i];
      context_->index->Release(one.lease).IgnoreError();  // known: nobody else has the id
      TakeShorter(shortest, std::move(shorter[i]), &one);
    }
  }
}

// Begins to bring a page into RAM, or to check it there. If the page was adopted, given up or found
// bad since `page` was read, this looks at it again. Returns false if the page is in RAM or gone,
// or if somebody else is at it.
bool Loader::Begin(index::PageInfo* page) {
  for (int look = 0; look < 2; ++look) {
    const bool begun =
        page->state == index::PageState::kUnverified
            ? context_->index->BeginCheck(page->ref, page->extent)
            : page->state == index::PageState::kSsd && context_->index->BeginPromotion(page->ref);
    if (begun || index::InRam(page->state)) return begun;
    const index::PageInfo now = context_->index->WaitWhilePromoting(page->ref, base::Deadline());
    page->state = now.state;
    page->extent = now.extent;
    page->ssd_sequence = now.ssd_sequence;
  }
  return false;
}

// Every extent is allocated before the first read, or the answer is shorter: nobody waits while
// holding extents. Reads start even for pages that are cut off here: they were given room, and
// somebody may want them next.
void Loader::Start(const SpaceInfo& space, const Patience& patience, index::Acquired* held) {
  const auto now = std::chrono::steady_clock::now();
  // The other half is for loading.
  const Patience for_room = patience.Before(now + (std::max(patience.until(), now) - now) / 2);
  const uint64_t queued_us = NowMicros();
  std::vector<Promotion> promotions(held->pages.size());
  for (size_t i : ByPosition(held->pages)) {
    index::PageInfo& page = held->pages[i];
    if (page.first_token >= held->answer.restorable_tokens) break;
    if (!Begin(&page)) continue;
    const bool in_place = page.state == index::PageState::kUnverified;
    if (!in_place) {
      absl::StatusOr<block::Extent> extent = room_->Take(
          page.page_bytes, space.FullPageBytes(page.ref.group, page.ref.rung), for_room);
      if (!extent.ok()) {
        Refuse(page.ref);
        Shorten(page.first_token, page.ref.group, block::ShortenReason::kRamFull, &held->answer);
        break;
      }
      page.extent = *extent;
    }
    promotions[i] = {page, page.extent, in_place, queued_us};
  }
  std::erase_if(promotions, [](const Promotion& promotion) { return !promotion.extent; });
  Enqueue(std::move(promotions));
}

index::PageInfo Loader::Await(const index::PageRef& page, const Patience& patience) const {
  for (;;) {
    const index::PageInfo now = context_->index->WaitWhilePromoting(page, patience.next_look());
    if (now.state != index::PageState::kPromoting || patience.over()) return now;
  }
}

}  // namespace prefixd::cache
