#include "cache/far/fetcher.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "block/page_check.h"

namespace prefixd::cache {
namespace {

bool IsFor(const index::PageInfo& page, const remote::BundlePage& of_bundle) {
  return page.ref.group == of_bundle.group && page.ref.rung == of_bundle.rung;
}

}  // namespace

// Where the bundle's pages go: an extent for each that is expected, other memory for the rest. The
// extents that are not taken over go back.
class Fetcher::Places {
 public:
  Places(Context* context, const FarLoad& load) : context_(context), load_(load) {}
  ~Places() {
    for (const block::Extent& extent : extents_) {
      if (extent) context_->arena->Free(extent);
    }
  }
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;

  absl::Status Take(Room& room, const Patience& patience, const std::atomic<bool>* cancelled) {
    for (const index::PageInfo& page : load_.expected) {
      PREFIXD_ASSIGN_OR_RETURN(
          const block::Extent extent,
          room.Take(page.page_bytes, load_.space->FullPageBytes(page.ref.group, page.ref.rung),
                    patience, cancelled));
      extents_.push_back(extent);
    }
    for (const remote::BundlePage& page : load_.bundle.opened.record.pages) {
      spans_.push_back(PlaceOf(page));
    }
    return absl::OkStatus();
  }
  std::span<const std::span<std::byte>> spans() const { return spans_; }
  block::Extent extent(size_t expected) const { return extents_[expected]; }
  void GaveAway(size_t expected) { extents_[expected] = {}; }

 private:
  std::span<std::byte> PlaceOf(const remote::BundlePage& of_bundle) {
    for (size_t i = 0; i < load_.expected.size(); ++i) {
      if (!IsFor(load_.expected[i], of_bundle)) continue;
      return {context_->arena->data(extents_[i]), of_bundle.page_bytes};
    }
    counted_.push_back(
        std::make_unique<InFlight>(&context_->in_flight_bytes, of_bundle.page_bytes));
    return others_.emplace_back(of_bundle.page_bytes);
  }

  Context* const context_;
  const FarLoad& load_;
  std::vector<block::Extent> extents_;  // of load_.expected
  std::deque<std::vector<std::byte>> others_;
  std::vector<std::unique_ptr<InFlight>> counted_;  // of others_
  std::vector<std::span<std::byte>> spans_;         // of the bundle's pages
};

void Fetcher::Enqueue(std::vector<FarLoad> loads) {
  if (loads.empty()) return;
  auto batch = std::make_shared<Batch>();
  batch->begun_us = context_->Now();
  batch->until = std::chrono::steady_clock::now() + far_->options().request_patience;
  batch->left = loads.size();
  for (FarLoad& load : loads) batch->loads.push_back(std::move(load));
  {
    const base::MutexLock lock(mutex_);
    queue_.push_back(std::move(batch));
  }
  wake_.NotifyAll();
}

bool Fetcher::Next(FarLoad* load, std::shared_ptr<Batch>* batch) {
  const base::MutexLock lock(mutex_);
  if (queue_.empty()) return false;
  *batch = std::move(queue_.front());
  queue_.pop_front();
  *load = std::move((*batch)->loads.front());
  (*batch)->loads.pop_front();
  if (!(*batch)->loads.empty()) queue_.push_back(*batch);
  return true;
}

absl::Status Fetcher::ReadInto(const FarLoad& load, const Places& places, base::Deadline until) {
  std::vector<remote::Tag> tags;
  const std::vector<remote::Runs> stripes =
      remote::StripesInto(load.bundle.opened, places.spans(), &tags);
  PREFIXD_RETURN_IF_ERROR(far_->store().Load(
      load.bundle.key, stripes,
      std::min(until, std::chrono::steady_clock::now() + far_->options().load_patience)));
  if (remote::OpenPages(far_->options().keys, load.bundle.opened, places.spans(), tags)) {
    return absl::OkStatus();
  }
  return absl::DataLossError("remote: the bytes of a bundle are not those of its record");
}

// As when a page is read from SSD: the arena's record first, then the index.
absl::Status Fetcher::Finish(const index::PageInfo& expected, block::Extent extent) {
  index::PageInfo page = expected;
  page.check = block::PageCheck(page.name, {context_->arena->data(extent), expected.page_bytes});
  const base::MutexLock lock(records_->mutex);
  records_->Write(page, extent);
  if (context_->index->FinishArrival(page.ref, page.check, extent,
                                     context_->arena->marks(extent))) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError("remote: snapshots that are held take all their share");
}

void Fetcher::Count(const absl::Status& why) {
  const char* counter = "remote.failed";
  if (absl::IsNotFound(why)) counter = "remote.gone";
  if (absl::IsDataLoss(why)) counter = "remote.bad.bytes";
  if (absl::IsDeadlineExceeded(why)) counter = "remote.late";
  if (absl::IsResourceExhausted(why)) counter = "remote.no_room";
  context_->counters.Add(counter);
}

void Fetcher::Fail(const FarLoad& load, size_t first, const absl::Status& why) {
  far_->present.Forget(load.bundle.key);
  // Its record was there: what lacks a stripe, or has another's bytes, is no good to anybody.
  if (absl::IsNotFound(why) || absl::IsDataLoss(why)) far_->SaySpoiled(load.bundle.key);
  if (absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why)) far_->SayDown();
  for (size_t i = first; i < load.expected.size(); ++i) {
    const index::PageRef& page = load.expected[i].ref;
    refused_->AddNotCome(page);
    context_->index->FailPromotion(page, index::PrefixIndex::PromotionFailure::kTryAgain);
  }
  Count(why);  // last: who sees it counted stores it anew
}

absl::Status Fetcher::Load(const FarLoad& load, base::Deadline until) {
  const base::Deadline now = std::chrono::steady_clock::now();
  Places places(context_, load);
  absl::Status status;
  if (stopping_) status = absl::UnavailableError("remote: prefixd is stopping");
  if (status.ok() && now >= until) {
    status = absl::DeadlineExceededError("remote: the request's blocks did not come in time");
  }
  if (status.ok()) {
    status = places.Take(*room_, std::min(until, now + far_->options().room_patience), &stopping_);
  }
  if (status.ok()) status = ReadInto(load, places, until);
  size_t done = 0;
  for (; status.ok() && done < load.expected.size(); ++done) {
    // First: who finds the page finds it counted.
    context_->counters.AddAll(
        {{"remote.pages_loaded", 1}, {"remote.bytes_loaded", load.expected[done].page_bytes}});
    status = Finish(load.expected[done], places.extent(done));
    if (!status.ok()) break;
    places.GaveAway(done);
  }
  if (!status.ok()) Fail(load, done, status);
  return status;
}

bool Fetcher::Step() {
  FarLoad load;
  std::shared_ptr<Batch> batch;
  if (!Next(&load, &batch)) return false;
  const absl::Status status = Load(load, batch->until);
  for (const index::PageInfo& page : load.expected) batch->bytes += page.page_bytes;
  if (!status.ok()) batch->failed = true;
  if (--batch->left == 0 && !batch->failed) {
    const auto us = static_cast<uint64_t>(context_->Now() - batch->begun_us);
    model_->LearnFar(batch->bytes, us);
    context_->counters.Time("remote.load", us);
  }
  context_->FreeTaken();
  changed_->Notify();
  return true;
}

void Fetcher::Run() {
  for (;;) {
    if (Step()) continue;
    const base::MutexLock lock(mutex_);
    while (queue_.empty() && !stopped_) wake_.Wait(mutex_);
    if (queue_.empty()) return;
  }
}

void Fetcher::Stop() {
  stopping_ = true;
  {
    const base::MutexLock lock(mutex_);
    stopped_ = true;
  }
  wake_.NotifyAll();
}

}  // namespace prefixd::cache
