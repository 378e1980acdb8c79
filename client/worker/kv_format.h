// Chooses how the worker's KV cache is stored, from its flags.
//
// Pure functions of their arguments.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "prefixd/attention.h"
#include "prefixd/client.h"

namespace prefixd::worker {

// Flags as written; empty = not given.
struct KvFlags {
  std::string bits = {};        // "8" or "8,4": keys, values; empty = raw
  std::string group_size = {};  // "64" or "64,32"; empty = 64
  std::string dtype = {};       // f32, f16, bf16: of raw elements, or of scales and biases
  std::string rotation = {};    // none or hadamard; empty = none
  std::string layout = {};      // rows or tiled; empty = tiled
  std::optional<uint32_t> quantized_start = {};  // empty = 0
  std::optional<uint32_t> min_tokens = {};       // empty = 0
};

// Which tokens of a sequence stay raw in a quantized KV cache. The rule takes whole blocks: what is
// stored is never quantized again, so a chain may be raw first and quantized from some block on.
struct QuantizeRule {
  uint32_t start = 0;  // blocks that end at or before it stay raw
  // After a prompt shorter than this, the blocks that hold the first min_tokens tokens stay raw
  // too.
  uint32_t min_tokens = 0;

  bool mixes() const { return start > 0 || min_tokens > 0; }
  // Returns the token up to which blocks are raw: those that end at or before it.
  uint32_t RawTokens(uint32_t prompt_tokens, uint32_t block_tokens) const;
};

struct KvChoice {
  KvFormat format;
  QuantizeRule rule;
  std::string warning;  // about a choice that works but is rarely meant; empty = none

  // Returns the formats that the space stores, finest first: `format` last, and before it raw
  // elements of the same dtype if the rule keeps some tokens raw.
  std::vector<KvFormat> Ladder() const;
};

// Returns the choice that the flags make. By default the layout is tiled if the format has it, raw
// elements are f32, and scales and biases are f16. InvalidArgument names the flag, what it holds
// and the choices.
absl::StatusOr<KvChoice> ChooseKvFormat(const KvFlags& flags);

// Returns InvalidArgument if a group size does not divide head_dim, or if head_dim cannot be
// rotated; the message names both.
absl::Status CheckKvFormat(const KvFormat& format, uint32_t head_dim);

// How prompt tokens attend (prefill), and how generated tokens attend (decode).
struct AttentionModes {
  AttendMode prefill = AttendMode::kPrecise;  // or kFastPrefill
  AttendMode decode = AttendMode::kPrecise;   // or kFast
};
// Returns "prefill precise, decode fast".
std::string Describe(const AttentionModes& modes);

// How to attend on `format` by default. Decoding is fast if its own error is well below the error
// of the format. Prefill is precise, because others read what a prompt leaves in the cache.
// `reason` is for people.
struct AttentionChoice {
  AttentionModes modes;
  std::string reason;
};
AttentionChoice ChooseAttention(const KvFormat& format);

// Returns "raw f32", "8-bit group 64 (f16 scales)", "keys 8-bit group 64, values 4-bit group 32
// (f16 scales)". ", hadamard" and ", tiled" follow if they apply.
std::string Describe(const KvFormat& format);

}  // namespace prefixd::worker
