// Names of blocks in a store that several hosts share. A name says nothing of what it names to
// whoever has not the tenant's key.
//
// Thread-safe.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/checksum.h"
#include "block/block_hash.h"
#include "block/tokens.h"

namespace prefixd::remote {

// Names a full block after all before it; all zeros name the start of a sequence.
using ChainName = base::Hash128;

// What one tenant's names and seals are made from. Derived by HKDF-SHA256 (RFC 5869) from the bytes
// of a key file and the tenant's name.
struct TenantKeys {
  std::array<std::byte, 32> naming{};
  std::array<std::byte, 32> sealing{};
};
TenantKeys DeriveKeys(std::span<const std::byte> secret, const std::string& tenant);

class Namer {
 public:
  // `generation` is raised to clear all that a tenant has stored.
  Namer(const TenantKeys& keys, uint64_t generation, const block::SpaceId& space);

  // Returns the first 16 bytes of HMAC-SHA256(naming key, u64 generation | space id | parent's name
  // | u32 n | n x u32 token | u32 m | m x content key), little-endian, content keys as in
  // block/block_hash.h. Requires: ValidateContent(block) is OK.
  ChainName Next(const ChainName& parent, const block::SequenceView& block) const;

 private:
  std::array<std::byte, 32> key_;
  uint64_t generation_;
  block::SpaceId space_;
};

// Returns "pd1:{BASE64}:FORMATS", of which Redis Cluster hashes what is in braces. `formats`: which
// rungs the bundle's pages are in, letters and digits.
std::string KeyOf(const ChainName& name, const std::string& formats);

}  // namespace prefixd::remote
