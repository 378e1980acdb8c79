// Names of blocks in a store that several hosts share. Without the tenant's key, a name says
// nothing of what it names.
//
// Thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/checksum.h"
#include "block/block_hash.h"
#include "block/tokens.h"
#include "remote/hmac.h"

namespace prefixd::remote {

// Names a full block after all before it; all zeros name the start of a sequence.
using ChainName = base::Hash128;

// The keys of one tenant's names and seals. Two hosts that have the same key file and tenant have
// the same keys.
struct TenantKeys {
  Key256 naming{};
  Key256 sealing{};
};
// Returns HKDF-SHA256(secret, salt: SHA-256(tenant), info: "prefixd remote 1 naming" or "prefixd
// remote 1 sealing"). `secret` is the bytes of a key file. Requires: it is not empty.
TenantKeys DeriveKeys(std::span<const std::byte> secret, const std::string& tenant);

class Namer {
 public:
  // Under another `generation` every block has another name: so a tenant clears what it stored.
  Namer(const TenantKeys& keys, uint64_t generation, const block::SpaceId& space);

  // Returns the first 16 bytes of HMAC-SHA256(naming key, u64 generation | space id | parent's name
  // | u32 n | n x u32 token | u32 m | m x content key), little-endian, content keys as in
  // block/block_hash.h. Requires: ValidateContent(block) is OK.
  ChainName Next(const ChainName& parent, const block::SequenceView& block) const;

 private:
  Hmac hmac_;
  uint64_t generation_;
  block::SpaceId space_;
};

// Returns "pd1:{NAME}:FORMATS", NAME in 22 characters of URL-safe base64 without padding. Redis
// Cluster hashes what is in braces, so that all keys of a block are on one node. `formats` says
// which rungs the bundle's pages are in, in letters and digits.
std::string KeyOf(const ChainName& name, const std::string& formats);

}  // namespace prefixd::remote
