// What the page asks: what people may see of a running daemon. It changes nothing.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "daemon/config.h"
#include "daemon/server.h"

namespace prefixd::daemon {

// Thread-safe.
class PageSource {
 public:
  virtual ~PageSource() = default;

  virtual block::Stats Stats() const = 0;  // may wait for the disk
  virtual cache::ArenaPlace Arena() const = 0;
  virtual std::vector<block::NamedCount> RamShares() const = 0;
  virtual std::string Health() const = 0;  // "serving", "loading", "draining"
  virtual std::vector<block::SpaceSummary> Spaces() const = 0;
  virtual std::vector<block::SessionInfo> Sessions() const = 0;
  virtual std::vector<block::LeaseInfo> Leases() const = 0;
  virtual std::vector<block::PinInfo> Pins() const = 0;
  virtual block::PastAnswers Why(const block::WhyQuery& query) const = 0;
  // `space`: null for all of them.
  virtual block::HotPrefixes Prefixes(const block::SpaceId* space, uint32_t most) const = 0;
  virtual std::vector<Setting> Settings() const = 0;
};

// The source of a page of this cache and its server, which must outlive it.
class ServedSource final : public PageSource {
 public:
  ServedSource(cache::Cache* cache, const Server* server) : cache_(cache), server_(server) {}

  block::Stats Stats() const override { return cache_->GetStats(); }
  cache::ArenaPlace Arena() const override { return cache_->arena(); }
  std::vector<block::NamedCount> RamShares() const override { return cache_->RamShares(); }
  std::string Health() const override { return server_->health(); }
  std::vector<block::SpaceSummary> Spaces() const override { return cache_->ListSpaces(); }
  std::vector<block::SessionInfo> Sessions() const override { return cache_->ListSessions(); }
  std::vector<block::LeaseInfo> Leases() const override { return cache_->ListLeases(); }
  std::vector<block::PinInfo> Pins() const override { return cache_->ListPins(); }
  block::PastAnswers Why(const block::WhyQuery& query) const override { return cache_->Why(query); }
  block::HotPrefixes Prefixes(const block::SpaceId* space, uint32_t most) const override {
    return cache_->ListPrefixes(space, most);
  }
  std::vector<Setting> Settings() const override { return server_->settings(); }

 private:
  cache::Cache* const cache_;
  const Server* const server_;
};

}  // namespace prefixd::daemon
