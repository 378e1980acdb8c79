// Promotion: a page from SSD into its extent, verified before anyone may read it.
#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {

// Says what went wrong and gives the page up, or back to the SSD when another try may succeed.
void Core::GiveUpPromotion(const index::PageInfo& page, const absl::Status& status) {
  const bool io_error = status.code() == absl::StatusCode::kUnavailable;
  index->FailPromotion(page.ref, io_error ? index::PrefixIndex::PromotionFailure::kTryAgain
                                          : index::PrefixIndex::PromotionFailure::kCorrupt);
  if (status.code() ==
      absl::StatusCode::kNotFound) {  // its segment aged out while the read was queued
    counters.Add("promotions.aged_out");
    return;
  }
  counters.Add(io_error ? "ssd.read_errors" : "check_failures");
  Log(LogLevel::kWarning, absl::StrCat("page at ssd sequence ", page.ssd_sequence, " is ",
                                       io_error ? "not readable" : "bad and dropped", ": ",
                                       std::string(status.message())));
}

void Core::Promote(const Promotion& promotion) {
  const index::PageInfo& page = promotion.page;
  const std::span<std::byte> bytes(arena->data(promotion.extent), page.page_bytes);
  block::PageHeader header;
  absl::Status status = store->ReadPage(page.ssd_sequence, &header, bytes);
  const bool readable = status.ok();
  if (readable) status = block::VerifyPage(header, page.name, page.check, bytes);
  if (status.ok()) {
    index->FinishPromotion(page.ref, promotion.extent);
    counters.Add("pages.promoted");
    counters.Add("bytes.promoted", page.page_bytes);
    counters.Time("promote",
                  static_cast<uint64_t>(options.clock->MonotonicMicros()) - promotion.queued_us);
    FreeTaken();
    return;
  }
  arena->Free(promotion.extent);
  GiveUpPromotion(page, status);
  FreeTaken();
}

void Core::PromotionLoop() {
  while (true) {
    Promotion promotion;
    {
      base::MutexLock lock(promote_mutex);
      while (promote_queue.empty() && !promote_stop) promote_wake.Wait(promote_mutex);
      if (promote_queue.empty()) return;  // stops once every page that was promised is decided
      promotion = std::move(promote_queue.front());
      promote_queue.pop_front();
    }
    Promote(promotion);
  }
}

}  // namespace prefixd::cache
