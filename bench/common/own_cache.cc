#include "bench/common/own_cache.h"

#include "base/status.h"

namespace prefixd::bench {

absl::StatusOr<OwnCache> OpenOwnCache(const cache::Options& options,
                                      const block::SpaceIdentity& identity) {
  OwnCache own;
  PREFIXD_ASSIGN_OR_RETURN(own.cache, cache::Cache::Open(options));
  own.session = own.cache->BeginSession("bench");
  PREFIXD_ASSIGN_OR_RETURN(const cache::OpenedSpace opened,
                           own.cache->OpenSpace(own.session, identity));
  own.space = opened.space;
  return own;
}

}  // namespace prefixd::bench
