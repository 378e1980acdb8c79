// Promotion: a page is read from SSD into its extent, or, if an earlier daemon left it in RAM,
// checked where it is.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "cache/load/loader.h"

namespace prefixd::cache {
namespace {

constexpr size_t kVerifyAtOnce = 16;
constexpr std::chrono::milliseconds kHealPatience(100);  // for room, to read a bad page again

}  // namespace

void Loader::Refuse(const index::PageRef& page) {
  refused_->Add(page);
  context_->index->FailPromotion(page, index::PrefixIndex::PromotionFailure::kTryAgain);
}

void Loader::Enqueue(std::vector<Promotion> promotions) {
  if (promotions.empty()) return;
  {
    base::MutexLock lock(mutex_);
    queue_.push_back({.promotions = std::move(promotions)});
  }
  wake_.NotifyAll();
}

// Says what went wrong, and gives the page up, or back to the SSD if another try may succeed.
// Counts first, like Promote(): whoever waited for the page finds it counted.
void Loader::GiveUp(const index::PageInfo& page, const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) return Refuse(page.ref);
  const bool io_error = status.code() == absl::StatusCode::kUnavailable;
  const bool aged_out = status.code() == absl::StatusCode::kNotFound;  // while the read was queued
  context_->counters.Add(aged_out   ? "promotions.aged_out"
                         : io_error ? "ssd.read_errors"
                                    : "check_failures");
  refused_->Forget(page.ref);
  context_->index->FailPromotion(page.ref, io_error
                                               ? index::PrefixIndex::PromotionFailure::kTryAgain
                                               : index::PrefixIndex::PromotionFailure::kCorrupt);
  if (aged_out) return;
  context_->Log(LogLevel::kWarning, absl::StrCat("page at ssd sequence ", page.ssd_sequence, " is ",
                                                 io_error ? "not readable" : "bad and dropped",
                                                 ": ", std::string(status.message())));
}

void Loader::Promote(const Promotion& promotion) {
  const index::PageInfo& page = promotion.page;
  const std::span<std::byte> bytes(context_->arena->data(promotion.extent), page.page_bytes);
  absl::Status status = context_->store->ReadPage(page.ssd_sequence, page.name, page.check, bytes);
  if (absl::IsNotFound(status)) {
    // Its segment left while the read was queued; a page that is held was written again.
    const uint64_t now =
        context_->index->WaitWhilePromoting(page.ref, base::Deadline()).ssd_sequence;
    if (now != 0) status = context_->store->ReadPage(now, page.name, page.check, bytes);
  }
  if (status.ok()) {
    base::MutexLock lock(records_->mutex);
    records_->Write(page, promotion.extent);
    context_->counters.AddAll({{"pages.promoted", 1}, {"bytes.promoted", page.page_bytes}});
    context_->counters.Time("promote", NowMicros() - promotion.queued_us);
    if (!context_->index->FinishPromotion(page.ref, promotion.extent,
                                          context_->arena->marks(promotion.extent))) {
      status =
          absl::ResourceExhaustedError("promote: snapshots that are held take all their share");
    }
  }
  if (!status.ok()) {
    context_->arena->Free(promotion.extent);
    GiveUp(page, status);
  }
  context_->FreeTaken();
  changed_->Notify();
}

// Bad bytes in RAM: when the page is on SSD too, it is read from there into another extent.
void Loader::CheckInPlace(const Promotion& promotion) {
  const index::PageInfo& page = promotion.page;
  const std::span<const std::byte> bytes(context_->arena->data(promotion.extent), page.page_bytes);
  if (block::PageCheck(page.name, bytes) == page.check) {
    context_->counters.AddAll({{"pages.verified", 1}, {"bytes.verified", page.page_bytes}});
    context_->index->FinishPromotion(page.ref, promotion.extent,
                                     context_->arena->marks(promotion.extent));
    changed_->Notify();
    return;
  }
  GiveUp(page, absl::DataLossError("what an earlier daemon left in RAM has another check"));
  context_->FreeTaken();
  const SpacePtr space = spaces_->Find(page.name.space);
  if (context_->store != nullptr && page.ssd_sequence != 0 && space != nullptr &&
      context_->index->BeginPromotion(page.ref)) {
    absl::StatusOr<block::Extent> extent =
        room_->Take(page.page_bytes, space->FullPageBytes(page.ref.group, page.ref.rung),
                    std::chrono::steady_clock::now() + kHealPatience);
    if (extent.ok()) {
      return Promote({.page = page, .extent = *extent, .queued_us = promotion.queued_us});
    }
    Refuse(page.ref);
  }
  changed_->Notify();
}

// One of the request that waited longest for its turn.
bool Loader::Next(Promotion* promotion) {
  base::MutexLock lock(mutex_);
  if (queue_.empty()) return false;
  Batch batch = std::move(queue_.front());
  queue_.pop_front();
  *promotion = batch.promotions[batch.next++];
  if (batch.next < batch.promotions.size()) queue_.push_back(std::move(batch));
  return true;
}

bool Loader::PromotionsWait() const {
  base::MutexLock lock(mutex_);
  return !queue_.empty() || stopped_;
}

// In its spare time one thread looks at what an earlier daemon left: soon no request waits for it.
bool Loader::VerifySome() {
  if (!context_->unverified_left) return false;
  {
    base::MutexLock lock(mutex_);
    if (verifying_) return false;
    verifying_ = true;
  }
  const std::vector<index::PageInfo> pages = context_->index->Unverified(kVerifyAtOnce);
  if (pages.empty()) context_->unverified_left = false;
  for (const index::PageInfo& page : pages) {
    if (PromotionsWait()) break;
    if (!context_->index->BeginCheck(page.ref, page.extent)) continue;
    CheckInPlace({.page = page, .extent = page.extent, .in_place = true, .queued_us = NowMicros()});
  }
  if (!context_->unverified_left) {
    context_->counters.Add("verified.everything");
    context_->Log(LogLevel::kInfo, "every page that was left in RAM is verified");
  }
  base::MutexLock lock(mutex_);
  verifying_ = false;
  verified_.NotifyAll();
  return true;
}

// Only what is verified is written to the SSD.
void Loader::WaitVerified(const Patience& patience) {
  while (context_->unverified_left && !patience.over()) {
    if (!PromotionsWait() && VerifySome()) continue;
    base::MutexLock lock(mutex_);
    if (context_->unverified_left) verified_.WaitUntil(mutex_, patience.next_look());
  }
}

bool Loader::Step() {
  Promotion promotion;
  if (!Next(&promotion)) return PrefetchOne() || VerifySome();
  if (promotion.in_place) {
    CheckInPlace(promotion);
  } else {
    Promote(promotion);
  }
  return true;
}

void Loader::Run() {
  for (;;) {
    {
      base::MutexLock lock(mutex_);
      if (stopped_ && queue_.empty()) return;
    }
    if (Step()) continue;
    base::MutexLock lock(mutex_);
    const auto may_verify = [this]() PREFIXD_REQUIRES(mutex_) {
      return context_->unverified_left && !verifying_;
    };
    while (queue_.empty() && hints_.empty() && !stopped_ && !may_verify()) wake_.Wait(mutex_);
  }
}

void Loader::Stop() {
  {
    base::MutexLock lock(mutex_);
    stopped_ = true;
  }
  wake_.NotifyAll();
}

}  // namespace prefixd::cache
