// What prefixd-llama counts since it began. Thread-safe.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace prefixd::llama {

struct Counts {
  std::atomic<uint64_t> requests = 0;           // that a slot was chosen for
  std::atomic<uint64_t> passed_through = 0;     // all others
  std::atomic<uint64_t> prompt_tokens = 0;      // of `requests`
  std::atomic<uint64_t> slot_tokens = 0;        // of them, those that the chosen slot had
  std::atomic<uint64_t> restored_tokens = 0;    // and those that came from prefixd
  std::atomic<uint64_t> recomputed_tokens = 0;  // of both, those that the server computed again
  std::atomic<uint64_t> restores = 0;
  std::atomic<uint64_t> failed_restores = 0;
  std::atomic<uint64_t> saves = 0;
  std::atomic<uint64_t> failed_saves = 0;  // saving or storing
  std::atomic<uint64_t> stored_tokens = 0;
  std::atomic<uint64_t> saved_ms = 0;
  std::atomic<uint64_t> server_errors = 0;  // requests that got 503 or a broken answer

  // Returns the counts in Prometheus' text format.
  std::string Text() const {
    struct Line {
      const char* name;
      const std::atomic<uint64_t>* value;
      const char* help;
    };
    const std::array<Line, 13> lines = {{
        {"requests", &requests, "Requests for which a slot was chosen."},
        {"passed_through", &passed_through, "Requests that were passed through untouched."},
        {"prompt_tokens", &prompt_tokens, "Prompt tokens of requests."},
        {"slot_tokens", &slot_tokens, "Prompt tokens that the chosen slot had itself."},
        {"restored_tokens", &restored_tokens, "Prompt tokens that came from prefixd."},
        {"recomputed_tokens", &recomputed_tokens,
         "Tokens that were in the slot and that the server computed again."},
        {"restores", &restores, "States restored into slots."},
        {"failed_restores", &failed_restores, "States that could not be restored."},
        {"saves", &saves, "States saved from slots."},
        {"failed_saves", &failed_saves, "States that could not be saved or stored."},
        {"stored_tokens", &stored_tokens, "Tokens stored in prefixd."},
        {"saved_milliseconds", &saved_ms, "Time to first token saved, estimated."},
        {"server_errors", &server_errors, "Requests that the server did not answer."},
    }};
    std::string text;
    for (const Line& line : lines) {
      absl::StrAppend(&text, "# HELP prefixd_llama_", line.name, "_total ", line.help,
                      "\n# TYPE prefixd_llama_", line.name, "_total counter\nprefixd_llama_",
                      line.name, "_total ", line.value->load(), "\n");
    }
    return text;
  }
};

}  // namespace prefixd::llama
