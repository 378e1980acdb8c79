// A page's record is published, read, withdrawn and written anew, by two threads that have nothing
// but the record's state between them.
#include "gtest/gtest.h"

#include "tests/ram/litmus.h"

namespace prefixd::ram {
namespace {

constexpr size_t kPlaces =
    512;  // many, so that a thread has work while the other one is not running

// One record and its reader's last word about it. The writer acts once the reader saw what it wrote
// last: a worker never looks at a record that may change, and the state says the rest.
struct Place {
  block::Extent extent{};
  alignas(64) std::atomic<uint64_t> seen{0};  // odd: published so often / 2; even: withdrawn
};

class RecordsLitmus {
 public:
  RecordsLitmus() {
    for (Place& place : places_) {
      place.extent = stage_.arena->Allocate(kLitmusPage, kLitmusPage).value();
    }
  }

  void Run(uint64_t rounds) {
    rounds_ = rounds;
    std::thread reader([this] { Read(); });
    Write();
    reader.join();
    std::cout << 3 * rounds_ * kPlaces << " operations: " << rounds_ * kPlaces
              << " records published, read whole and withdrawn\n";
  }

 private:
  static uint32_t PageAt(size_t place, uint64_t round) {
    return static_cast<uint32_t>(Mix(place, round) % KnownPages::kCount);
  }

  void Write() {
    std::array<uint64_t, kPlaces> steps{};  // even: to publish; odd: to withdraw
    Turn turn;
    for (size_t ended = 0; ended < kPlaces && !verdict_.bad();) {
      ended = 0;
      for (size_t i = 0; i < kPlaces; ++i) {
        uint64_t& step = steps[i];
        if (step == 2 * rounds_) {
          ++ended;
        } else if (places_[i].seen.load(std::memory_order_acquire) != step) {
          turn.Wait();
        } else if (step++ % 2 == 0) {
          pages_.Store(*stage_.arena, places_[i].extent, PageAt(i, step / 2));
        } else {
          Withdraw(places_[i].extent);
        }
      }
    }
  }

  // Freed and given out again: what a new page's writer gets.
  void Withdraw(block::Extent extent) {
    stage_.arena->Free(extent);
    const block::Extent again = stage_.arena->Allocate(kLitmusPage, kLitmusPage).value();
    verdict_.Require(again == extent, "the extent that was freed last is given out first");
  }

  void Read() {
    Turn turn;
    for (size_t ended = 0; ended < kPlaces && !verdict_.bad();) {
      ended = 0;
      for (size_t i = 0; i < kPlaces; ++i) {
        const uint64_t seen = places_[i].seen.load(std::memory_order_relaxed);
        if (seen == 2 * rounds_) {
          ++ended;
        } else if (IsPublished(places_[i].extent) == (seen % 2 != 0)) {
          turn.Wait();
        } else {
          if (seen % 2 == 0) Check(places_[i].extent, PageAt(i, seen / 2));
          places_[i].seen.store(seen + 1, std::memory_order_release);
        }
      }
    }
  }

  // Not more than a look: PageNames and WhyNotWhole read the state again, with acquire.
  bool IsPublished(block::Extent extent) const {
    return view_.record(extent).state.load(std::memory_order_relaxed) != 0;
  }

  void Check(block::Extent extent, uint32_t page) {
    const uint32_t state = view_.record(extent).state.load(std::memory_order_acquire);
    verdict_.Require(state != 0, "a record that was withdrawn while somebody reads it");
    const std::string why = pages_.WhyNotWhole(*stage_.mapping, view_.record(extent), extent, page);
    if (!why.empty()) verdict_.Fail(why + " at " + std::to_string(extent.offset));
    verdict_.Require(IsPayload(view_.data(extent), page), "bytes of another page");
  }

  LitmusArena stage_;
  const View view_{*stage_.arena, *stage_.mapping};
  const KnownPages pages_{*stage_.arena, *stage_.mapping};
  std::array<Place, kPlaces> places_;
  uint64_t rounds_ = 0;
  Verdict verdict_;
};

TEST(LitmusTest, WhoeverSeesARecordPublishedReadsItWholeAndItsPayload) {
  RecordsLitmus().Run(LitmusOperations(2) / (3 * kPlaces));
}

}  // namespace
}  // namespace prefixd::ram
