// The last 256 pages that found no room in RAM, and the last 256 that another host's copy of did
// not come. If a page that somebody waited for is not in RAM, this tells lack of room from an error
// of the disk, and a copy that is gone from a bad one.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>

#include "base/mutex.h"
#include "block/answer.h"
#include "index/prefix_index.h"

namespace prefixd::cache {

// Thread-safe.
class Refused {
 public:
  void Add(const index::PageRef& page) {
    const base::MutexLock lock(mutex_);
    refused_.Add(page);
  }
  void AddNotCome(const index::PageRef& page) {
    const base::MutexLock lock(mutex_);
    not_come_.Add(page);
  }
  void Forget(const index::PageRef& page) {
    const base::MutexLock lock(mutex_);
    std::ranges::replace(refused_.pages, page, index::PageRef());
  }
  // Why a page that somebody waited for did not come.
  block::ShortenReason WhyNotInRam(const index::PageInfo& page) const {
    const base::MutexLock lock(mutex_);
    if (page.state == index::PageState::kGone) {
      return not_come_.Has(page.ref) ? block::ShortenReason::kEvicted
                                     : block::ShortenReason::kCorrupt;
    }
    return refused_.Has(page.ref) ? block::ShortenReason::kRamFull : block::ShortenReason::kIoError;
  }

 private:
  struct Last {
    void Add(const index::PageRef& page) { pages[next++ % pages.size()] = page; }
    bool Has(const index::PageRef& page) const {
      return std::ranges::find(pages, page) != pages.end();
    }
    std::array<index::PageRef, 256> pages{};
    size_t next = 0;
  };
  mutable base::Mutex mutex_;
  Last refused_ PREFIXD_GUARDED_BY(mutex_), not_come_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::cache
