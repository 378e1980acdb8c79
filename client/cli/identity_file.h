// The identity of the space whose KV a file holds, as JSON. `prefixctl import --identity` reads it,
// `prefixctl export` writes it into the file's metadata.
//
//   {"model": "llama-3-8b", "weights_digest": "64 hex digits", "adapter_digest": "...",
//    "tokenizer_digest": "...", "salt": "", "block_tokens": 64,
//    "rope": {"theta": 500000, "rotary_dim": 128, "scaling": "", "scaling_params": [],
//             "interleaved": false, "key_before_rope": false},
//    "layers": [{"count": 32, "kv_heads": 8, "key_dim": 128, "value_dim": 128,
//                "formats": ["mlx_affine/8/64/bf16+mlx_affine/4/64/bf16", "..."]},
//               {"kind": "sliding", "window": 1024, "sink_tokens": 4, "kv_heads": ...},
//               {"kind": "state", "state_bytes": 98304}]}
//
// Only "model" is required here. prefixd also requires "weights_digest" unless it trusts names.
// Import takes "layers" from the imported file if they are left out.
// Pure functions, thread-safe.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "prefixd/client.h"
#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::cli {

// Whoever knows the salt of a space can read its cache. Export therefore writes only the salt's
// digest ("salt_digest", 16 hex digits, "" for none), and import needs the salt as well. An
// identity that people write may hold the salt itself.

// Returns OK if `digest` is empty (no salt) or is the digest of `salt`. Otherwise
// FailedPrecondition, which says that `what` has a salt, whether `salt` is missing or wrong, and
// what to do.
absl::Status CheckSalt(const std::string& what, const std::string& digest, const std::string& salt);
// Parses an identity. `salt` is used if the identity does not hold its salt. InvalidArgument names
// the field that is unknown, missing or wrong; also returns CheckSalt's errors.
absl::StatusOr<SpaceSpec> ReadIdentity(const std::string& json, const std::string& salt = "");
std::string WriteIdentity(const SpaceSpec& spec);
// Converts the identity of a space. InvalidArgument if its caches cannot be exchanged: drafts,
// several ranks, missing layers, layers without values or caches of their own.
absl::StatusOr<SpaceSpec> SpecOf(const v1::SpaceIdentity& identity);

// Parses "mlx_affine/8/64/bf16", or K and V with a "+" between them.
absl::StatusOr<KvFormat> ParseKvFormat(const std::string& text);

}  // namespace prefixd::cli
