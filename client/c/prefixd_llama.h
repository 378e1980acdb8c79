// prefixd_llama.h: the caches of a llama.cpp context that runs in this process. They are those that
// prefixd-llama shares: the same model file, types of K and V, adapters and salt are one space.
//
// A state is what llama_state_seq_get_data_ext() gives and llama_state_seq_set_data_ext() takes,
// with flags of 0, for one sequence. The contract of prefixd.h holds. Since version 9.
//
//   llama = prefixd_llama_open(client, &spec);
//   lease = prefixd_acquire(prefixd_llama_space(llama), tokens, n, &lookup, NULL);
//   count = prefixd_wait_all(lease, 0);
//   bytes = prefixd_llama_state_bytes(llama, count);
//   if (prefixd_llama_fill_state(llama, lease, state, bytes) == PREFIXD_OK)
//     llama_state_seq_set_data_ext(context, state, bytes, 0, 0);
//   prefixd_release(lease, NULL);
#ifndef PREFIXD_LLAMA_H_
#define PREFIXD_LLAMA_H_
#include "prefixd.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct prefixd_llama prefixd_llama;

typedef struct prefixd_llama_spec {
  size_t size;
  const char* gguf;      // path of the model file
  const char* adapters;  // LoRA, and all else that changes K and V beyond the file; NULL = nothing
  const char* salt;      // as prefixd-llama's --salt; NULL = none
  // The state of one token or more, of this context: it tells the types of K and V. Not kept.
  const void* state;
  size_t state_bytes;
  uint32_t context_tokens;  // that a sequence has room for: llama_n_ctx_seq(context)
  // The build of llama.cpp and its settings, as text: what decides whether quantized K and V are
  // rotated. It counts only where a state does not say it (before version 4). NULL = not known:
  // such a context has no space.
  const char* build;
} prefixd_llama_spec;

// Opens the space of a context. Returns NULL if the file cannot be read, the state is not known
// here, or they do not fit each other; the daemon is then told that the model is not shared, and
// why. Reads the whole file the first time: its digest is remembered. Without a daemon the space
// opens all the same, and attaches once the daemon is there.
PREFIXD_API prefixd_llama* prefixd_llama_open(prefixd_client* client,
                                              const prefixd_llama_spec* spec);
PREFIXD_API void prefixd_llama_close(prefixd_llama* llama);  // frees the handle
// Gives the space, to look tokens up in. It belongs to `llama`: do not close it.
PREFIXD_API prefixd_space* prefixd_llama_space(prefixd_llama* llama);

// Returns the size of the state of the first `tokens` tokens. 0 if there is none: of 0 tokens, or
// of no more than the window of the model's sliding layers.
PREFIXD_API size_t prefixd_llama_state_bytes(const prefixd_llama* llama, uint32_t tokens);
// Writes the state of all tokens that the lease can restore. Waits for its pages. With an error
// what is in `state` means nothing. PREFIXD_INVALID_ARGUMENT if `bytes` is not the size of that
// state.
PREFIXD_API prefixd_status prefixd_llama_fill_state(const prefixd_llama* llama,
                                                    prefixd_lease* lease, void* state,
                                                    size_t bytes);

typedef struct prefixd_llama_store_options {
  size_t size;
  uint32_t deadline_ms;  // of all calls to the daemon together; 0 = 10000
  uint32_t turn_end_count;
  const uint32_t* turn_ends;  // where a sequence ended before its last token
} prefixd_llama_store_options;
// Stores what the cache lacks of a state. A sequence ends at its last token.
// PREFIXD_INVALID_ARGUMENT if it is no state of `count` tokens, PREFIXD_FAILED_PRECONDITION if it
// is of another context. What was stored before an error stays. `options` and `out` may be NULL.
PREFIXD_API prefixd_status prefixd_llama_store(prefixd_llama* llama, const uint32_t* tokens,
                                               size_t count, const void* state, size_t bytes,
                                               const prefixd_llama_store_options* options,
                                               prefixd_commit_info* out);

#ifdef __cplusplus
}  // extern "C"
#endif
#endif  // PREFIXD_LLAMA_H_
