// Pages whose bytes follow from sequence, layer group and block: places in one random pattern, so
// that they are made and compared at memory speed, and a page under another name is recognized.
//
// Thread-safe once constructed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/common/stored_sequences.h"
#include "block/page_layout.h"
#include "block/space_identity.h"

namespace prefixd::bench {

class PageSource {
 public:
  explicit PageSource(const Geometry& geometry);

  static constexpr uint32_t kBlockTokens = 64;
  const block::SpaceIdentity& identity() const { return identity_; }
  uint32_t groups() const { return static_cast<uint32_t>(identity_.groups.size()); }
  uint64_t page_bytes(uint32_t group) const { return page_bytes_[group]; }  // of a full block
  uint64_t block_bytes() const { return block_bytes_; }                     // of all groups
  uint64_t bytes_per_token() const { return block_bytes_ / kBlockTokens; }

  struct Name {
    uint64_t sequence = 0;
    uint32_t group = 0;
    uint32_t block = 0;
  };
  // The page stands in the pattern: valid as long as this.
  const std::byte* page(const Name& name) const;
  bool Matches(const Name& name, const std::byte* page) const;

 private:
  block::SpaceIdentity identity_;
  std::vector<uint64_t> page_bytes_;
  uint64_t block_bytes_ = 0;
  std::vector<uint64_t> pattern_;
};

}  // namespace prefixd::bench
