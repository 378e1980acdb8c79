// How the worker's KV cache is stored, from the words of its flags.
//
// Pure functions of their arguments.
#pragma once
#include <cstdint>
#include <string>

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
};

struct KvChoice {
  KvFormat format;
  std::string warning;  // a choice that works and is rarely meant; empty = none
};

// Layout tiled where the format has it, unless told otherwise. Raw elements are f32 unless told
// otherwise, scales and biases f16. InvalidArgument names the flag, what it holds and the choices.
absl::StatusOr<KvChoice> ChooseKvFormat(const KvFlags& flags);

// InvalidArgument when a group size does not divide head_dim, or when head_dim cannot be rotated;
// names both.
absl::Status CheckKvFormat(const KvFormat& format, uint32_t head_dim);

// How decoding attends on `format` when nobody says: kFast where its own error is well below what
// the format costs already. `reason` is a sentence's end for people.
struct AttentionChoice {
  AttendMode mode = AttendMode::kPrecise;
  std::string reason;
};
AttentionChoice ChooseAttention(const KvFormat& format);

// "raw f32", "8-bit group 64 (f16 scales)", "keys 8-bit group 64, values 4-bit group 32 (f16
// scales)"; ", hadamard" and ", tiled" behind
// it, where they are.
std::string Describe(const KvFormat& format);

}  // namespace prefixd::worker
