// Whose bytes these are and what they are: everything that makes one model's cache usable by
// another worker. One field different is another space; nothing is ever shared across spaces.
//
// Plain values. Encode() is the contract: length-framed, fixed-width, little-endian, versioned; the
// space id is its SHA-256, and the same bytes are kept on disk so that a restart knows every space.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "block/block_hash.h"
#include "block/layer_group.h"

namespace prefixd::block {

inline constexpr uint32_t kIdentityVersion = 1;
inline constexpr uint32_t kDefaultBlockTokens = 64;

enum class Role : uint8_t { kTarget = 1, kDraft = 2 };
enum class RopePairing : uint8_t { kHalves = 1, kInterleaved = 2 };  // (i, i + d/2) or (2i, 2i + 1)

struct Rope {
  double theta = 0;
  std::string scaling;                 // "", "llama3", "yarn", "linear", ...
  std::vector<double> scaling_params;  // in the order that the scaling documents
  uint32_t rotary_dims = 0;
  RopePairing pairing = RopePairing::kHalves;
  bool key_after_rope = true;  // K is stored after RoPE, hence bound to its position
  bool operator==(const Rope&) const = default;
};

struct SpaceIdentity {
  std::string model;                 // id, for people
  base::Digest256 weights_digest{};  // all zero = opened by name alone
  base::Digest256 adapter_digest{};  // all zero = none
  base::Digest256 tokenizer_digest{};
  Role role = Role::kTarget;
  base::Digest256 target_digest{};  // a draft that reads its target's states: the target's weights
  Rope rope;
  uint32_t tensor_parallel = 1;
  uint32_t pipeline_parallel = 1;
  std::string tenant;         // set by the daemon from the connection, never by the client
  std::string salt;           // the tenant's own separation of users
  uint32_t block_tokens = 0;  // 16, 32, 64 or 128; Normalize() turns 0 into the default
  std::vector<LayerGroup> groups;
  bool operator==(const SpaceIdentity&) const = default;
};

// Fills defaults (block_tokens) in place, then checks every field. InvalidArgument says which one.
absl::Status NormalizeAndValidate(SpaceIdentity* identity);

std::string Encode(const SpaceIdentity& identity);
absl::StatusOr<SpaceIdentity> DecodeSpaceIdentity(
    const std::string& encoded);  // DataLoss when it is not one
SpaceId IdOf(const SpaceIdentity& identity);

// Names of the fields in which two identities differ, "weights_digest",
// "groups[2].ladder[0].key.bits"; empty = same.
std::vector<std::string> DifferingFields(const SpaceIdentity& a, const SpaceIdentity& b);

// Bytes of KV per token in rung 0 of every group, without padding (formats.md: 60,928 for
// Qwen3-0.6B at 8-bit g64).
uint64_t PayloadBytesPerToken(const SpaceIdentity& identity);

}  // namespace prefixd::block
