// A cache in this process with one space open: what needs no daemon is measured and tried on it.
//
// One thread.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "cache/cache.h"

namespace prefixd::bench {

class OwnCache {
 public:
  static absl::StatusOr<std::unique_ptr<OwnCache>> Open(const cache::Options& options,
                                                        const block::SpaceIdentity& identity);
  cache::Cache& cache() { return *cache_; }
  block::SessionId session() const { return session_; }
  block::SpaceHandle space() const { return space_; }
  // Stores the pages that are missing, all zeros, and the states that lie beyond so many tokens.
  absl::Status Store(const std::vector<block::Token>& tokens, uint32_t states_beyond = 0);
  static base::Deadline Soon() {
    return std::chrono::steady_clock::now() + std::chrono::seconds(60);
  }

 private:
  struct Piece {
    uint32_t group = 0, first_token = 0, rung = 0, tokens = 0;
  };
  explicit OwnCache(const block::SpaceIdentity& identity);
  absl::Status Put(block::ReservationId reservation, const Piece& piece);

  const block::SpaceIdentity identity_;
  std::vector<std::vector<std::byte>> pages_;  // zeros, as long as each group's longest
  std::unique_ptr<cache::Cache> cache_;
  block::SessionId session_;
  block::SpaceHandle space_;
};

}  // namespace prefixd::bench
