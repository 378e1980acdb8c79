// Records in the arena's file: from them the next daemon knows the page in an extent.
#pragma once
#include "base/mutex.h"
#include "cache/context.h"
#include "cache/tables/spaces.h"

namespace prefixd::cache {

// Thread-safe. Does nothing in a private arena.
class PageRecords {
 public:
  PageRecords(Context* context, const Spaces* spaces) : context_(context), spaces_(spaces) {}

  // Records the page at its new place, before it is readable there: what is readable is found after
  // a crash too. Hold `mutex` until the index has the place as well.
  void Write(const index::PageInfo& page, block::Extent extent) PREFIXD_REQUIRES(mutex);

  base::Mutex mutex;  // held while a space is cleared, too: none of its pages gets a record again

 private:
  Context* const context_;
  const Spaces* const spaces_;
};

}  // namespace prefixd::cache
