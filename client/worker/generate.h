// Serves one request: looks the prompt up, computes what the cache lacks, answers, stores.
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
  bool verify_hit = false;                   // verify a hit after its answer, see verify.h
  Durability durability = Durability::kRam;  // durability of the answer's end
};

struct Answer {
  std::string id;
  DeviceFacts device;
  uint32_t prompt_tokens = 0;
  uint32_t used_tokens = 0;     // prompt tokens whose cached bytes attention read
  uint64_t in_place_bytes = 0;  // bytes of prompt pages that attention read in prefixd's memory
  MatchInfo match;              // what the cache promised
  // Tokens by the format of the K and V that were attended on, in the first layer that keeps K and
  // V.
  uint32_t raw_tokens = 0, quantized_tokens = 0;
  std::vector<uint32_t> tokens;
  bool ended = false;  // stopped at an end token, which is not in `tokens`

  std::chrono::microseconds load{0};         // from asking for the cached pages to having them
  std::chrono::microseconds prefill{0};      // computing prompt tokens, waits for pages excluded
  std::chrono::microseconds first_token{0};  // from request to first token
  std::chrono::microseconds decode{0};       // all tokens after the first
  double prefill_tokens_per_s = 0;           // in whole grid steps; 0 = no prefill
  double tokens_per_s = 0;                   // decoding speed
  std::chrono::microseconds store_wait{0};  // waits for storing, in decode and after the last token

  std::optional<Verification> verified;
  std::string verify_error;  // why verification failed; empty if it did not

  // Tokens sent to the cache. A tail that grew is sent again, and counts again.
  uint32_t stored_tokens = 0;
  bool on_ssd = false;            // everything is on SSD, as was asked for
  uint32_t duplicate_tokens = 0;  // tokens that were already stored
  uint64_t pinned_bytes = 0;      // of prefixd's memory, which the device reads where it is
  std::string why_not_pinned;     // what the device's driver refused first; may be empty
  bool arena = false;             // prefixd's memory is mapped
  std::string why_no_arena;       // empty if it is mapped
  std::string store_error;  // why tokens were not stored, or empty: a later miss, nothing else
};

// Runs one step of prefill and one of decode on a sequence of its own. This starts the threads and
// touches weights and scratch, so that the first request is not charged for it.
absl::Status WarmUp(Model& model, Space& space);

// Answers `prompt` and stores its KV. Moves the model to the space's grid. Requires: `model` has
// the format of `space`. InvalidArgument if the prompt or the answer is empty, or if both together
// are longer than the model's positions; Internal if attention fails. A cache error is no error
// here: it only shortens what is reused.
absl::StatusOr<Answer> Generate(Model& model, Space& space, const Prompt& prompt,
                                const AnswerOptions& options);

}  // namespace prefixd::worker
