// A cache in this process with one space open: what needs no daemon is measured and tried on it.
#pragma once
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "cache/cache.h"

namespace prefixd::bench {

struct OwnCache {
  std::unique_ptr<cache::Cache> cache;
  block::SessionId session;
  block::SpaceHandle space;
};
// RAM for a few pages, an SSD tier in `directory`.
inline cache::Options SmallSsdCache(const std::string& directory) {
  cache::Options options;
  options.ram_budget_bytes = uint64_t{32} << 20;
  options.ssd_budget_bytes = uint64_t{1} << 30;
  options.directory = directory;
  return options;
}
absl::StatusOr<OwnCache> OpenOwnCache(const cache::Options& options,
                                      const block::SpaceIdentity& identity);

}  // namespace prefixd::bench
