// The requests whose prompts prefixd-llama knows: completions and chat completions, as llama-server
// and OpenAI's clients send them.
//
// Thread-safe.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/llama/llama_server.h"

namespace prefixd::llama {

// Returns true if a POST to `path` has a prompt whose slot can be chosen.
bool HasPrompt(const std::string& path);

// Returns the tokens that the server will compute for the body. Unimplemented if the request is one
// whose slot must not be chosen: several prompts or answers, images, a slot or adapters of its own,
// a prompt that must not be cached. Other errors are the server's.
absl::StatusOr<std::vector<uint32_t>> PromptOf(const std::string& path, const std::string& body,
                                               const LlamaServer& server);

// Returns the body with "id_slot" set, every other byte as it was. Requires: a JSON object.
std::string WithSlot(const std::string& body, int slot);

// What a server says of a request at its end: "timings" of the answer or of its last event.
struct Timings {
  uint32_t cached_tokens = 0, computed_tokens = 0;
  double prompt_ms = 0;
};
// Looks for them in the last bytes of an answer.
std::optional<Timings> TimingsIn(const std::string& end_of_answer);

}  // namespace prefixd::llama
