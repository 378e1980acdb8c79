// What is to be raised once the store hears of it (Generations), kept on disk: a daemon that ends
// before owes it still.
//
// A text file: the line "prefixd clears 1", then a line for each wish, the
// name of its number in the store and the space's id in hex. Wishes of another tenant stay in it
// until that tenant's key is given again.
//
// Thread-safe, but for the constructor.
#pragma once
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "base/mutex.h"
#include "block/block_hash.h"

namespace prefixd::cache {

class Wishes {
 public:
  // Files beside what else outlives the process. Empty: there is none; without any, Keep keeps
  // nothing.
  struct Places {
    std::string store, arena;
  };
  explicit Wishes(Places places) : places_(std::move(places)) {}

  // Returns the spaces that an earlier daemon owed, of which `name_of` gives the names that stand
  // there. Files that cannot be read are as none, and `say` hears of it. Call it once, first.
  std::set<block::SpaceId> Load(const std::function<std::string(const block::SpaceId&)>& name_of,
                                const std::function<void(const std::string&)>& say)
      PREFIXD_EXCLUDES(mutex_);
  // Replaces what is kept; on the disk when it returns. Without the store's file if the store is
  // not open: its folder may be another one then. An error, if no file took it.
  absl::Status Keep(const std::set<block::SpaceId>& spaces,
                    const std::function<std::string(const block::SpaceId&)>& name_of,
                    bool store_is_open) PREFIXD_EXCLUDES(mutex_);

 private:
  const Places places_;
  base::Mutex mutex_;
  std::vector<std::string> others_ PREFIXD_GUARDED_BY(mutex_);  // lines of other tenants
};

}  // namespace prefixd::cache
