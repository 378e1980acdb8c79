// A cache in this process as one host has it, with pages so small that they do not count.
//
// One thread, as OwnCache.
#pragma once
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "base/bytes.h"
#include "bench/common/own_cache.h"
#include "bench/trace/geometry.h"

namespace prefixd::bench {

inline constexpr TraceShape kSmallShape{.block_tokens = 64, .kv_blocks = 1, .page_bytes = 4096};

struct SmallHost {
  std::shared_ptr<remote::RemoteStore> store = nullptr;  // null: no shared tier
  std::chrono::milliseconds find_patience = cache::RemoteOptions().find_patience;
};
inline absl::StatusOr<std::unique_ptr<OwnCache>> OpenSmallHost(const SmallHost& host) {
  cache::Options options;
  options.ram_budget_bytes = uint64_t{256} << 20;
  options.remote.store = host.store;
  options.remote.find_patience = host.find_patience;
  options.remote.keys = remote::DeriveKeys(base::AsBytes(std::string("a key of the bench")), "");
  block::SpaceIdentity identity = IdentityOf(kSmallShape);
  identity.tenant = "local";
  return OwnCache::Open(options, identity);
}

inline cache::Request RequestOf(const OwnCache& own, std::vector<block::Token> tokens) {
  cache::Request request;
  request.space = own.space();
  request.tokens = std::move(tokens);
  return request;
}

}  // namespace prefixd::bench
