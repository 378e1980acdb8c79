// Whose bytes a file holds, as JSON: what `prefixctl import --identity` reads and `prefixctl
// export` writes into the file's metadata.
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
// Only "model" is required here, and prefixd wants "weights_digest" too unless it trusts names;
// "layers" follow from the file that is imported where they are left out.
// Pure functions, thread-safe.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "prefixd/client.h"
#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::cli {

// A salt is whose cache it is, and who knows it reads that cache: what export writes has its digest
// alone ("salt_digest", 16 hex digits, "" for none), and who imports it must bring the salt along.
// What people write may have the salt itself.

// OK when `salt` is that of the digest, or there is none. FailedPrecondition, with `what` has it
// and what to do, when it is missing or another one.
absl::Status CheckSalt(const std::string& what, const std::string& digest, const std::string& salt);
// `salt`: of an identity that does not have it itself. InvalidArgument naming the field that is
// unknown, missing or wrong; CheckSalt's errors.
absl::StatusOr<SpaceSpec> ReadIdentity(const std::string& json, const std::string& salt = "");
std::string WriteIdentity(const SpaceSpec& spec);
// InvalidArgument for what has no caches to exchange: drafts, several ranks, layers without values
// or caches of their own.
absl::StatusOr<SpaceSpec> SpecOf(const v1::SpaceIdentity& identity);

// "mlx_affine/8/64/bf16", or K and V with a "+" between them.
absl::StatusOr<KvFormat> ParseKvFormat(const std::string& text);

}  // namespace prefixd::cli
