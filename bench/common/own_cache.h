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
absl::StatusOr<OwnCache> OpenOwnCache(const cache::Options& options,
                                      const block::SpaceIdentity& identity);

}  // namespace prefixd::bench
