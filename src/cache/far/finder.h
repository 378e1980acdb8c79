// Finds which blocks of a request other hosts have stored.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cache/cache.h"
#include "cache/context.h"
#include "cache/far/far.h"
#include "remote/bundle.h"

namespace prefixd::cache {

// A bundle of one block whose record is what was asked for.
struct FoundBundle {
  std::string key;
  remote::OpenedRecord opened;
};
// The bundles of one block: its keys and values, and a snapshot at its end.
struct FoundBlock {
  std::vector<FoundBundle> bundles;
  bool has_pages = false, has_snapshot = false;
};

// Thread-safe.
class Finder {
 public:
  Finder(Context* context, Far* far) : context_(context), far_(far) {}

  // Asks for the blocks [first_block, end_block) of the request, in batches that grow, up to the
  // first that is not there. Returns those before it: fewer if the store is late or down.
  std::vector<FoundBlock> Find(const SpaceInfo& space, const Request& request, uint32_t first_block,
                               uint32_t end_block, base::Deadline deadline);

 private:
  struct Search;
  bool FindBatch(Search& search, uint32_t begin, uint32_t end);  // false: the last one
  FoundBlock Take(const Search& search, uint32_t block, const std::vector<std::string>& keys,
                  std::span<const remote::FoundRecord> records);
  // Returns nullopt, and counts why, unless the record is that of this block.
  std::optional<FoundBundle> Open(const Search& search, uint32_t block, const std::string& key,
                                  const std::string& formats, const std::string& record);
  bool IsAbsent(const Search& search, const std::vector<std::string>& keys) const;
  // What a block may be stored as, the preferred rung first.
  static std::vector<std::string> FormatsFor(const SpaceInfo& space, const Request& request);

  Context* const context_;
  Far* const far_;
};

}  // namespace prefixd::cache
