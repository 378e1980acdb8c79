// Promotion: a page from SSD into its extent, or one that an earlier daemon left checked where it
// stands; verified before anyone may read it.
#include <algorithm>

#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {
namespace {

constexpr size_t kVerifyAtOnce = 16;
constexpr std::chrono::milliseconds kHealPatience(100);  // for room, to read a bad page again

}  // namespace

block::ShortenReason Core::WhyNotInRam(const index::PageInfo& page) const {
  if (page.state == index::PageState::kGone) return block::ShortenReason::kCorrupt;
  return refused.Contains(page.ref) ? block::ShortenReason::kRamFull
                                    : block::ShortenReason::kIoError;
}

// There is no room in RAM for it: it stays on SSD, and good.
void Core::RefusePromotion(const index::PageRef& page) {
  refused.Add(page);
  index->FailPromotion(page, index::PrefixIndex::PromotionFailure::kTryAgain);
}

void Core::Enqueue(std::vector<Promotion> promotions) {
  if (promotions.empty()) return;
  {
    base::MutexLock lock(promote_mutex);
    promote_queue.push_back({.promotions = std::move(promotions)});
  }
  promote_wake.NotifyAll();
}

// Says what went wrong and gives the page up, or back to the SSD when another try may succeed.
// Counted first, here and below: whoever waited for the page finds it counted.
void Core::GiveUpPromotion(const index::PageInfo& page, const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) return RefusePromotion(page.ref);
  const bool io_error = status.code() == absl::StatusCode::kUnavailable;
  const bool aged_out = status.code() == absl::StatusCode::kNotFound;  // while the read was queued
  counters.Add(aged_out ? "promotions.aged_out" : io_error ? "ssd.read_errors" : "check_failures");
  refused.Forget(page.ref);
  index->FailPromotion(page.ref, io_error ? index::PrefixIndex::PromotionFailure::kTryAgain
                                          : index::PrefixIndex::PromotionFailure::kCorrupt);
  if (aged_out) return;
  Log(LogLevel::kWarning, absl::StrCat("page at ssd sequence ", page.ssd_sequence, " is ",
                                       io_error ? "not readable" : "bad and dropped", ": ",
                                       std::string(status.message())));
}

// Before the page is readable at this place: what is readable is found after a crash too.
void Core::WriteRecord(const index::PageInfo& page, block::Extent extent) {
  if (!arena->shared()) return;
  const std::optional<index::BlockDescription> block = index->Describe(page.ref);
  const SpacePtr space = block.has_value() ? SpaceOf(page.name.space) : nullptr;
  if (space == nullptr) return;
  arena->Publish(extent, {.name = page.name,
                          .space = space->ordinal,
                          .parent = block->name.parent,
                          .serial = block->serials.own,
                          .parent_serial = block->serials.parent,
                          .first_token = block->first_token,
                          .page_bytes = page.page_bytes,
                          .payload_bytes = page.payload_bytes,
                          .check = page.check,
                          .tokens = {block->tokens, block->content},
                          .ends = block->ends,
                          .last_use = options.clock->UnixMicros()});
}

void Core::Promote(const Promotion& promotion) {
  const index::PageInfo& page = promotion.page;
  const std::span<std::byte> bytes(arena->data(promotion.extent), page.page_bytes);
  absl::Status status = store->ReadPage(page.ssd_sequence, page.name, page.check, bytes);
  if (absl::IsNotFound(status)) {
    // Its segment left while the read was queued; a page that is held was written again.
    const uint64_t now = index->WaitWhilePromoting(page.ref, base::Deadline()).ssd_sequence;
    if (now != 0) status = store->ReadPage(now, page.name, page.check, bytes);
  }
  if (status.ok()) {
    base::MutexLock lock(clear_mutex);
    WriteRecord(page, promotion.extent);
    counters.AddAll({{"pages.promoted", 1}, {"bytes.promoted", page.page_bytes}});
    counters.Time("promote", static_cast<uint64_t>(Now()) - promotion.queued_us);
    if (!index->FinishPromotion(page.ref, promotion.extent, arena->marks(promotion.extent))) {
      status =
          absl::ResourceExhaustedError("promote: snapshots that are held take all their share");
    }
  }
  if (!status.ok()) {
    arena->Free(promotion.extent);
    GiveUpPromotion(page, status);
  }
  FreeTaken();
  watch_bell.Ring();
}

// Bad bytes in RAM: when the page is on SSD too, it is read from there into another extent.
void Core::CheckInPlace(const Promotion& promotion) {
  const index::PageInfo& page = promotion.page;
  const std::span<const std::byte> bytes(arena->data(promotion.extent), page.page_bytes);
  if (block::PageCheck(page.name, bytes) == page.check) {
    counters.AddAll({{"pages.verified", 1}, {"bytes.verified", page.page_bytes}});
    index->FinishPromotion(page.ref, promotion.extent, arena->marks(promotion.extent));
    watch_bell.Ring();
    return;
  }
  GiveUpPromotion(page,
                  absl::DataLossError("what an earlier daemon left in RAM has another check"));
  FreeTaken();
  const SpacePtr space = SpaceOf(page.name.space);
  if (store != nullptr && page.ssd_sequence != 0 && space != nullptr &&
      index->BeginPromotion(page.ref)) {
    absl::StatusOr<block::Extent> extent =
        AllocateExtent(page.page_bytes, space->FullPageBytes(page.ref.group, page.ref.rung),
                       std::chrono::steady_clock::now() + kHealPatience);
    if (extent.ok()) {
      return Promote({.page = page, .extent = *extent, .queued_us = promotion.queued_us});
    }
    RefusePromotion(page.ref);
  }
  watch_bell.Ring();
}

// One of the request that waited longest for its turn.
bool Core::NextPromotion(Promotion* promotion) {
  base::MutexLock lock(promote_mutex);
  if (promote_queue.empty()) return false;
  PromotionBatch batch = std::move(promote_queue.front());
  promote_queue.pop_front();
  *promotion = batch.promotions[batch.next++];
  if (batch.next < batch.promotions.size()) promote_queue.push_back(std::move(batch));
  return true;
}

bool Core::PromotionsWait() {
  base::MutexLock lock(promote_mutex);
  return !promote_queue.empty() || promote_stop;
}

// In its spare time one thread looks at what an earlier daemon left: soon no request waits for it.
bool Core::VerifySome() {
  if (!unverified_left) return false;
  {
    base::MutexLock lock(promote_mutex);
    if (verifying) return false;
    verifying = true;
  }
  const std::vector<index::PageInfo> pages = index->Unverified(kVerifyAtOnce);
  if (pages.empty()) unverified_left = false;
  for (const index::PageInfo& page : pages) {
    if (PromotionsWait()) break;
    if (!index->BeginPromotion(page.ref)) continue;
    CheckInPlace({.page = page,
                  .extent = page.extent,
                  .in_place = true,
                  .queued_us = static_cast<uint64_t>(Now())});
  }
  if (!unverified_left) {
    counters.Add("verified.everything");
    Log(LogLevel::kInfo, "every page that was left in RAM is verified");
  }
  base::MutexLock lock(promote_mutex);
  verifying = false;
  verify_done.NotifyAll();
  return true;
}

// Only what is verified is written to the SSD.
void Core::WaitVerified(const Patience& patience) {
  while (unverified_left && !patience.over()) {
    if (!PromotionsWait() && VerifySome()) continue;
    base::MutexLock lock(promote_mutex);
    if (unverified_left) verify_done.WaitUntil(promote_mutex, patience.next_look());
  }
}

// Stops once every page that was promised is decided.
void Core::PromotionLoop() {
  while (true) {
    Promotion promotion;
    if (NextPromotion(&promotion)) {
      if (promotion.in_place) {
        CheckInPlace(promotion);
      } else {
        Promote(promotion);
      }
      continue;
    }
    {
      base::MutexLock lock(promote_mutex);
      if (!promote_queue.empty()) continue;
      if (promote_stop) return;
    }
    if (PrefetchOne() || VerifySome()) continue;
    base::MutexLock lock(promote_mutex);
    while (promote_queue.empty() && prefetch_queue.empty() && !promote_stop)
      promote_wake.Wait(promote_mutex);
  }
}

}  // namespace prefixd::cache
