// Pages that found no room in RAM lately: of a page that was awaited and is still on SSD only, this
// tells want of room from an error of the disk. The last 256; thread-safe.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>

#include "base/mutex.h"
#include "index/prefix_index.h"

namespace prefixd::cache {

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
  bool Contains(const index::PageRef& page) const {
    const base::MutexLock lock(mutex_);
    return std::ranges::find(last_, page) != last_.end();
  }

 private:
  mutable base::Mutex mutex_;
  std::array<index::PageRef, 256> last_ PREFIXD_GUARDED_BY(mutex_){};
  size_t next_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

}  // namespace prefixd::cache
