// The last 256 pages that found no room in RAM. If a page that somebody waited for is still on SSD
// only, this tells lack of room from an error of the disk.
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
    last_[next_++ % last_.size()] = page;
  }
  void Forget(const index::PageRef& page) {
    const base::MutexLock lock(mutex_);
    std::ranges::replace(last_, page, index::PageRef());
  }
  // Why a page that somebody waited for did not come.
  block::ShortenReason WhyNotInRam(const index::PageInfo& page) const {
    if (page.state == index::PageState::kGone) return block::ShortenReason::kCorrupt;
    const base::MutexLock lock(mutex_);
    const bool refused = std::ranges::find(last_, page.ref) != last_.end();
    return refused ? block::ShortenReason::kRamFull : block::ShortenReason::kIoError;
  }

 private:
  mutable base::Mutex mutex_;
  std::array<index::PageRef, 256> last_ PREFIXD_GUARDED_BY(mutex_){};
  size_t next_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

}  // namespace prefixd::cache
