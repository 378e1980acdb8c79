// A space's identity: whose bytes the space holds, and all that decides whether another worker can
// use them. One field different is another space; nothing is ever shared across spaces.
//
// Plain values. Encode() is the contract: length-framed, fixed-width, little-endian, versioned. The
// space id is its SHA-256. The encoding is also kept on disk, so that a restart knows every space.
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
  std::vector<double> scaling_params;  // in the order that the scaling defines
  uint32_t rotary_dims = 0;
  RopePairing pairing = RopePairing::kHalves;
  bool key_after_rope = true;  // K is stored after RoPE, hence bound to its position
  bool operator==(const Rope&) const = default;
};

// A layer without keys and values of its own, which is in no group. It attends on those of layer
// `reads`, which is in a full or a sliding group.
struct SharedLayer {
  uint32_t layer = 0;
  uint32_t reads = 0;
  bool operator==(const SharedLayer&) const = default;
};

struct SpaceIdentity {
  std::string model;                 // model id, for people
  base::Digest256 weights_digest{};  // all zero = opened by name alone
  base::Digest256 adapter_digest{};  // all zero = none
  base::Digest256 tokenizer_digest{};
  Role role = Role::kTarget;
  base::Digest256 target_digest{};  // a draft that reads its target's states: the target's weights
  Rope rope;
  uint32_t tensor_parallel = 1;
  uint32_t pipeline_parallel = 1;
  std::string tenant;         // set by the daemon from the connection, never by the client
  std::string salt;           // separates users inside a tenant
  uint32_t block_tokens = 0;  // 16, 32, 64 or 128; NormalizeAndValidate turns 0 into the default
  std::vector<LayerGroup> groups;
  std::vector<SharedLayer> shared_layers{};  // ascending
  bool operator==(const SpaceIdentity&) const = default;
};

inline constexpr uint32_t kMaxModelBytes = 1024;
inline constexpr uint32_t kMaxTenantBytes = 256;  // of the tenant and of the salt
inline constexpr uint32_t kMaxScalingBytes = 64;
inline constexpr uint32_t kMaxScalingParams = 1024;
inline constexpr uint32_t kMaxRanks = 1024;

// Fills defaults in place (block_tokens; -0.0 becomes 0.0), then checks every field: each group
// passes Validate, there are 1 to kMaxGroups groups, ranks are inside the parallel plan, each layer
// index is in one group per shard, group names are unique in a shard, shared layers ascend and are
// as SharedLayer says. InvalidArgument names field, value and limit.
absl::Status NormalizeAndValidate(SpaceIdentity* identity);

// All functions below that take an identity require that NormalizeAndValidate has passed it.
//
// Returns u32 kIdentityVersion, then the fields in the order of identity_fields.h. A u32 count
// precedes strings and lists, digests are raw, enums and bools are u8, other fields have their
// declared width, little-endian. Shared layers are at the end, and only if there are any.
std::string Encode(const SpaceIdentity& identity);
// Returns DataLoss unless `encoded` is an encoding. The returned identity is valid and encodes to
// the same bytes.
absl::StatusOr<SpaceIdentity> DecodeSpaceIdentity(const std::string& encoded);
SpaceId IdOf(const SpaceIdentity& identity);

// Returns the names of the fields in which two identities differ, in encoding order:
// "weights_digest", "layer 3, format 0, key.bits". A group is named by the first of its layers in
// `a`. Lists of different length are named ("groups") and compared up to the end of the shorter
// one. Empty if the identities are the same.
std::vector<std::string> DifferingFields(const SpaceIdentity& a, const SpaceIdentity& b);

// Returns the bytes of KV per token in rung 0 of every group of every shard, without padding and
// state groups (60,928 for Qwen3-0.6B at 8 bits, group 64).
uint64_t PayloadBytesPerToken(const SpaceIdentity& identity);

}  // namespace prefixd::block
