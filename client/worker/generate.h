// The life of one request: look the prompt up, compute what the cache lacks, answer, store.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/worker/kv_format.h"
#include "client/worker/model.h"
#include "client/worker/prompts.h"
#include "client/worker/verify.h"
#include "prefixd/client.h"

namespace prefixd::worker {

struct AnswerOptions {
  uint32_t max_tokens = 64;  // at least 1
  double temperature = 0;
  uint64_t seed = 1;
  QuantizeRule quantize = {};                // which tokens are written raw
  bool verify_hit = false;                   // when it is one: after the answer, see verify.h
  Durability durability = Durability::kRam;  // of the answer's end
};

struct Answer {
  std::string id;
  uint32_t prompt_tokens = 0;
  uint32_t used_tokens = 0;     // of the prompt, attended on cached bytes
  uint64_t in_place_bytes = 0;  // pages of the prompt that were attended on in prefixd's memory
  MatchInfo match;              // what the cache promised
  // Tokens by the format that their K and V were attended on, of a layer that has them.
  uint32_t raw_tokens = 0, quantized_tokens = 0;
  std::vector<uint32_t> tokens;
  bool ended = false;  // at an end token, which is not among `tokens`

  std::chrono::microseconds load{0};         // asking for the cached pages to having them
  std::chrono::microseconds prefill{0};      // computing prompt tokens, waits for pages excluded
  std::chrono::microseconds first_token{0};  // request to first token
  std::chrono::microseconds decode{0};       // all tokens after the first
  double prefill_tokens_per_s = 0;           // whole grid steps of prefill; 0 = none
  double tokens_per_s = 0;                   // of decoding
  std::chrono::microseconds store_wait{0};  // for storing: while decoding, and after the last token

  std::optional<Verification> verified;
  std::string verify_error;  // why it was not, though asked for

  // Sent to the cache; a tail that grew is sent again, and counts again.
  uint32_t stored_tokens = 0;
  bool on_ssd = false;            // it is all there, as was asked for
  uint32_t duplicate_tokens = 0;  // that were there already
  bool arena = false;             // prefixd's memory is mapped
  std::string why_no_arena;       // empty when it is
  std::string store_error;  // why tokens were not stored, or empty: a later miss, nothing else
};

// Runs one step of prefill and one of decode on a sequence of its own: starts the threads, touches
// the weights and scratch, so that the first request is not charged for it.
absl::Status WarmUp(Model& model, Space& space);

// Requires: `model` has the format of `space`; it takes the space's grid. InvalidArgument when
// prompt and answer are longer than the model's positions; Internal when attention fails. No error
// of the cache is one here: it only shortens what is reused.
absl::StatusOr<Answer> Generate(Model& model, Space& space, const Prompt& prompt,
                                const AnswerOptions& options);

}  // namespace prefixd::worker
