// How the worker's KV cache is stored, from the words of its flags.
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

// Which tokens of a sequence stay raw although the KV is quantized. Whole blocks: what is stored is
// never quantized again, so that a chain may be raw first and quantized from some block on.
struct QuantizeRule {
  uint32_t start = 0;       // blocks that end at or before it stay raw
  uint32_t min_tokens = 0;  // as do, after a prompt shorter than that, the blocks that hold so many

  bool mixes() const { return start > 0 || min_tokens > 0; }
  // Blocks that end at or before it are raw.
  uint32_t RawTokens(uint32_t prompt_tokens, uint32_t block_tokens) const;
};

struct KvChoice {
  KvFormat format;
  QuantizeRule rule;
  std::string warning;  // a choice that works and is rarely meant; empty = none

  // What the space stores, finest first: `format` last, before it raw elements of the same dtype
  // where the rule keeps some tokens raw.
  std::vector<KvFormat> Ladder() const;
};

// Layout tiled where the format has it, unless told otherwise. Raw elements are f32 unless told
// otherwise, scales and biases f16. InvalidArgument names the flag, what it holds and the choices.
absl::StatusOr<KvChoice> ChooseKvFormat(const KvFlags& flags);

// InvalidArgument when a group size does not divide head_dim, or when head_dim cannot be rotated;
// names both.
absl::Status CheckKvFormat(const KvFormat& format, uint32_t head_dim);

// How the tokens of a prompt attend, and those that are generated.
struct AttentionModes {
  AttendMode prefill = AttendMode::kPrecise;  // or kFastPrefill
  AttendMode decode = AttendMode::kPrecise;   // or kFast
};
// "prefill precise, decode fast".
std::string Describe(const AttentionModes& modes);

// How to attend on `format` when nobody says: decoding is fast where its own error is well below
// what the format costs already; what a prompt leaves in the cache, others read: prefill is
// precise. `reason` is for people.
struct AttentionChoice {
  AttentionModes modes;
  std::string reason;
};
AttentionChoice ChooseAttention(const KvFormat& format);

// "raw f32", "8-bit group 64 (f16 scales)", "keys 8-bit group 64, values 4-bit group 32 (f16
// scales)"; ", hadamard" and ", tiled" behind
// it, where they are.
std::string Describe(const KvFormat& format);

}  // namespace prefixd::worker
