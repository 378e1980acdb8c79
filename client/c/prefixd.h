// prefixd.h: the C functions of libprefixd.so, for engines in C, Rust, Go, Swift or Python, linked
// or loaded by dlopen(RTLD_LOCAL | RTLD_DEEPBIND). C11 and C++; needs no other header of prefixd.
//
// Contract
//  - No call ends the process, throws, or outlives its deadline. Without a daemon, or if it dies or
//    is late, a lease has 0 tokens or fewer than before, and nothing else happens. NULL is valid
//    wherever a function takes a handle: a client without a daemon, a lease of 0 tokens.
//  - Structs that may grow begin with `size`. Set it to sizeof(the struct), and everything that
//    does not matter to 0, its default (PREFIXD_INIT does). A library that knows more members uses
//    their defaults. One that knows fewer refuses the struct (PREFIXD_INVALID_ARGUMENT) unless the
//    rest is 0.
//  - Functions that can fail for reasons worth telling return a prefixd_status, or NULL;
//    prefixd_last_error() then says why.
//  - Clients and spaces are thread-safe. A lease or a plan belongs to one thread at a time. Handles
//    may be freed in any order; the session ends with the last handle of its client.
//  - Create handles after fork(), not before. A child must not touch its parent's handles, nor the
//    pages of leases and plans, which are not mapped in it. It does not keep what its parent held
//    when the parent is killed.
//  - The library cannot be unloaded: it has threads.
//  - Functions and members are added, never changed; each time the version of
//    prefixd_abi_version() grows.
#ifndef PREFIXD_H_
#define PREFIXD_H_
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PREFIXD_ABI_VERSION 16
#if defined(__GNUC__)
#define PREFIXD_API __attribute__((visibility("default")))
#else
#define PREFIXD_API
#endif
// prefixd_options options = PREFIXD_INIT(prefixd_options);  An expression: it can be assigned too.
#ifdef __cplusplus
#define PREFIXD_INIT(type)  \
  ([] {                     \
    type it = {};           \
    it.size = sizeof(type); \
    return it;              \
  }())
#else
#define PREFIXD_INIT(type) ((type){.size = sizeof(type)})
#endif
#define PREFIXD_NO_LIMIT UINT32_MAX

typedef int32_t prefixd_status;
enum {
  PREFIXD_OK = 0,
  PREFIXD_INVALID_ARGUMENT = 1,
  PREFIXD_NOT_FOUND = 2,
  PREFIXD_UNAVAILABLE = 3,  // no daemon
  PREFIXD_DEADLINE = 4,
  PREFIXD_EXHAUSTED = 5,
  PREFIXD_FAILED_PRECONDITION = 6,
  PREFIXD_INTERNAL = 7
};

// Returns the library's version. Must be at least PREFIXD_ABI_VERSION of the caller's header.
PREFIXD_API uint32_t prefixd_abi_version(void);
// Returns why this thread's last call failed, or gave fewer tokens than it might have; "" if it did
// neither. Never NULL. Valid until the thread's next call. Freeing a handle does not change it.
PREFIXD_API const char* prefixd_last_error(void);
// Returns the same as a status. PREFIXD_INVALID_ARGUMENT is the caller's mistake, no other is.
PREFIXD_API prefixd_status prefixd_last_status(void);

// --- client ---

typedef struct prefixd_client prefixd_client;

typedef struct prefixd_options {
  size_t size;
  const char* address;  // "unix:///run/prefixd/prefixd.sock" by default, or "127.0.0.1:7777"
  const char* name;     // of this worker, shown to people
  uint32_t connect_deadline_ms;  // of the first try, in prefixd_open_space(); 0 = 2000
  uint32_t no_arena;             // 1: do not map the daemon's memory, copy pages through the socket
  uint32_t no_staging;           // 1: send pages instead of writing them to shared memory
  uint32_t reserved;             // 0
  uint64_t staging_bytes;        // shared memory that the daemon takes pages from; 0 = 64 MiB
  // For TCP: your copy of the file that prefixd's --token-file names, mode 0600. NULL or "" means
  // $PREFIXD_TOKEN_FILE. Since version 6.
  const char* token_file;
  const char* engine;  // and its version, shown to people: "vllm 0.32.0"; may be NULL. Since 12.
} prefixd_options;

// Returns at once; attaches and reconnects by itself. Returns NULL only if `options` is invalid, or
// memory or threads are out. `options` may be NULL.
PREFIXD_API prefixd_client* prefixd_attach(const prefixd_options* options);
PREFIXD_API void prefixd_detach(prefixd_client* client);  // frees the handle
// Waits until attached, at most `deadline_ms`. Returns 1 if attached, else 0; prefixd_last_error()
// then says whether it is attaching, nobody is there, the socket is forbidden, or prefixd refuses.
PREFIXD_API int32_t prefixd_attached(const prefixd_client* client, uint32_t deadline_ms);

// Tells the daemon that this process serves `model` with caches that are not shared, and why.
// `prefixctl status` and `prefixctl sessions` show it for as long as the client lives; a daemon
// that starts later is told too. An empty reason, or NULL, takes it back. Waits at most 200 ms,
// without a daemon not at all. Texts are cut to 1,024 bytes. PREFIXD_INVALID_ARGUMENT without a
// model, PREFIXD_EXHAUSTED beyond 16 models. prefixd_open_space() itself tells why it refused a
// spec. Since version 5.
PREFIXD_API prefixd_status prefixd_not_shared(prefixd_client* client, const char* model,
                                              const char* reason);

// Counts since prefixd_attach().
typedef struct prefixd_counts {
  size_t size;
  uint64_t lookups, failed_lookups;
  uint64_t requested_tokens, restorable_tokens;
  uint64_t gathered_bytes;
  uint64_t stored_tokens, duplicate_tokens, failed_commits;
  uint64_t attached;       // 1 or 0
  uint64_t arena_bytes;    // of the mapping of the daemon's memory; 0 = none
  uint64_t staging_bytes;  // granted by the daemon
} prefixd_counts;
PREFIXD_API void prefixd_stats(const prefixd_client* client, prefixd_counts* out);

// Names the trace to which the calls of this thread belong from now on, by the headers traceparent
// and tracestate (W3C Trace Context) of the engine's request: a daemon that exports spans puts its
// own below. It goes with what those calls do in threads of the library, too. An empty traceparent,
// or NULL, ends it. PREFIXD_INVALID_ARGUMENT if the traceparent is not well formed: the thread's
// calls belong to no trace then. A tracestate that is not well formed, or NULL, is left out. Since
// version 14.
PREFIXD_API prefixd_status prefixd_set_trace(const char* traceparent, const char* tracestate);

// Gives the SHA-256 of the tensors of a checkpoint directory (*.safetensors), remembered by inode,
// size and time, or of a file.
PREFIXD_API prefixd_status prefixd_digest_checkpoint(const char* directory, uint8_t digest[32]);
PREFIXD_API prefixd_status prefixd_digest_file(const char* path, uint8_t digest[32]);

// --- space: whose bytes, and what they are ---

typedef struct prefixd_space prefixd_space;

enum { PREFIXD_F32 = 1, PREFIXD_F16 = 2, PREFIXD_BF16 = 3 };
enum {
  PREFIXD_RAW = 1,
  PREFIXD_MLX_AFFINE = 2,
  PREFIXD_Q4_0 = 3,
  PREFIXD_Q4_1 = 4,
  PREFIXD_Q5_0 = 5,
  PREFIXD_Q5_1 = 6,
  PREFIXD_Q8_0 = 7,
  PREFIXD_MXFP4 = 8,  // MLX's block floating point: codes, and a scale byte for each group
  PREFIXD_MXFP8 = 9,
  PREFIXD_NVFP4 = 10  // without a global scale
};

// The order of the same codes in a page. Rows: the order of MLX and ggml. Tiled: the order that
// prefixd_attend() reads fastest; MLX's 8 and 4 bits, q8_0, q4_0 and q4_1 have it,
// prefixd_open_space() refuses it for others. Transposed: raw elements [dim][tokens] in the page.
// prefixd_write_packed() takes and prefixd_gather() gives the same bytes with every layout.
enum { PREFIXD_ROWS = 1, PREFIXD_TILED = 2, PREFIXD_TRANSPOSED = 3 };

// The format of K or V.
typedef struct prefixd_tensor_format {
  uint8_t codec;        // PREFIXD_RAW ...
  uint8_t dtype;        // PREFIXD_F32 ...: of raw elements or MLX scales and biases; else 0
  uint8_t bits;         // MLX: 2, 3, 4, 5, 6, 8; may be 0 for others, whose codec implies it
  uint8_t layout;       // of pages: PREFIXD_ROWS (or 0), PREFIXD_TILED ...
  uint16_t group_size;  // MLX: 32, 64, 128; may be 0 for others
  uint16_t reserved2;   // 0
} prefixd_tensor_format;
typedef struct prefixd_format {
  prefixd_tensor_format key, value;
} prefixd_format;

// Bytes of one token's packed row of one head, whatever the layout; all 0 when the format is
// impossible for rows of `dim`.
typedef struct prefixd_row {
  uint32_t codes, scales, biases;
} prefixd_row;
PREFIXD_API prefixd_row prefixd_row_bytes(const prefixd_tensor_format* format, uint32_t dim);

// What a layer keeps of earlier tokens. Full: K and V of all of them. Sliding: K and V of the last
// `window` tokens and of the first `sink_tokens`. State: one state of `state_bytes`, which is right
// at exactly one position; such a layer has no heads, dims and formats.
enum { PREFIXD_FULL = 1, PREFIXD_SLIDING = 2, PREFIXD_STATE = 3 };
// What a layer keeps beside its keys. Stored: its values. None: nothing. Key prefix: nothing; its
// values are the first value_dim elements of its keys (MLA), stored once. For none, value_dim is 0;
// for key prefix it is that of the prefix. For both a format's value repeats its key, and the value
// planes of a call may be NULL.
enum { PREFIXD_VALUES_STORED = 1, PREFIXD_VALUES_NONE = 2, PREFIXD_VALUES_KEY_PREFIX = 3 };

typedef struct prefixd_layer {
  size_t size;
  uint32_t kv_heads, key_dim, value_dim;
  // 1 to 4, finest first. Layers may differ in it: where a call names a format by its index, an
  // index beyond a layer's last format means that last one.
  uint32_t format_count;
  const prefixd_format* formats;
  // Since version 2.
  uint32_t kind;                 // PREFIXD_FULL (or 0) ...
  uint32_t window, sink_tokens;  // for PREFIXD_SLIDING
  uint32_t values;               // PREFIXD_VALUES_STORED (or 0) ...
  uint64_t state_bytes;          // for PREFIXD_STATE
  // Since version 3. If `shared` is 1, the layer has no cache of its own and attends on the keys
  // and values of the layer with index `reads_layer` (Gemma-3n, cross-layer attention). All other
  // members but `size` are then 0. Write keys and values to that layer, once; prefixd_gather() and
  // prefixd_table() of this layer give that layer's.
  uint32_t shared;
  uint32_t reads_layer;
} prefixd_layer;

typedef struct prefixd_rope {
  size_t size;
  double theta;
  const char* scaling;
  const double* scaling_params;
  uint32_t scaling_param_count;
  uint32_t rotary_dim;
  uint32_t interleaved;
  uint32_t key_before_rope;
} prefixd_rope;

typedef struct prefixd_space_spec {
  size_t size;
  const char* model;
  const uint8_t* weights_digest;  // digests: 32 bytes, or NULL
  const uint8_t* adapter_digest;
  const uint8_t* tokenizer_digest;
  const uint8_t* target_digest;  // of the target, for a draft model
  uint32_t draft;
  uint32_t tensor_parallel, pipeline_parallel;  // 0 = 1
  uint32_t tensor_rank, pipeline_rank;
  uint32_t block_tokens;  // 0 = the daemon's default
  uint32_t layer_count;
  uint32_t reserved;  // 0
  const prefixd_rope* rope;
  const char* salt;
  const prefixd_layer* layers;  // all of one `size`
} prefixd_space_spec;

// Opens a space. Returns NULL if the spec is impossible ("layer 3, format 0 (mlx_affine/8/128/f16):
// keys: group_size 128 does not divide head_dim 64") or the daemon refuses it. Without a daemon the
// space opens all the same, and attaches once the daemon is there.
PREFIXD_API prefixd_space* prefixd_open_space(prefixd_client* client,
                                              const prefixd_space_spec* spec);
PREFIXD_API void prefixd_close_space(prefixd_space* space);  // frees the handle

typedef struct prefixd_space_facts {
  size_t size;
  uint32_t block_tokens;
  uint32_t layer_count;
  uint64_t payload_bytes_per_token;  // in formats[0], without padding
  char id[72];                       // hex; "" until a daemon opened it
} prefixd_space_facts;
PREFIXD_API void prefixd_describe_space(const prefixd_space* space, prefixd_space_facts* out);

// --- lookup ---

// Non-token input (an image) under the placeholder tokens [start, start + length). `item_offset`:
// how much of the item stands before `start`.
typedef struct prefixd_content {
  uint32_t start, length, item_offset;
  uint8_t digest[32];
} prefixd_content;

typedef struct prefixd_lookup {
  size_t size;
  const prefixd_content* content;
  uint32_t content_count;
  // Most tokens to restore. An engine that needs logits asks for n - 1; PREFIXD_NO_LIMIT = all.
  // 0 looks nothing up, and so does a prompt of one token that asks for n - 1.
  uint32_t max_cached_tokens;
  uint32_t deadline_ms;         // of the lookup; 0 = 200
  uint32_t load_deadline_ms;    // of loading the pages; 0 = 10000
  uint64_t readable;            // mask of the format indexes that this engine reads; 0 = all
  double prefill_tokens_per_s;  // rate at which this engine computes tokens; 0 = unknown
  uint32_t wait_pending_ms;     // to wait for another worker that computes tokens of the request
  const char* request_id;
} prefixd_lookup;
// prefixd_lookup lookup = PREFIXD_LOOKUP_INIT;  No limit, which a lookup of NULL means too.
#ifdef __cplusplus
#define PREFIXD_LOOKUP_INIT                  \
  ([] {                                      \
    prefixd_lookup it = {};                  \
    it.size = sizeof(it);                    \
    it.max_cached_tokens = PREFIXD_NO_LIMIT; \
    return it;                               \
  }())
#else
#define PREFIXD_LOOKUP_INIT \
  ((prefixd_lookup){.size = sizeof(prefixd_lookup), .max_cached_tokens = PREFIXD_NO_LIMIT})
#endif

enum {
  PREFIXD_EXACT = 1,
  PREFIXD_SUPERSEQUENCE = 2,
  PREFIXD_PREFIX = 3,
  PREFIXD_LCP = 4,
  PREFIXD_NONE = 5
};

typedef struct prefixd_match_info {
  size_t size;
  uint32_t kind;  // PREFIXD_EXACT ...
  uint32_t matched_tokens, restorable_tokens, pending_tokens;
  uint32_t in_place;  // 1: the pages are read in the daemon's memory
  uint32_t reserved;
  uint64_t ram_bytes, ssd_bytes;
  uint64_t estimated_load_us;
  char why_shorter[128];  // "evicted 64, max_tokens 1"; cut to fit
  // Since version 11: of pages that other hosts stored, on their way from the shared store.
  uint64_t remote_bytes;
} prefixd_match_info;

// Looks the tokens up and changes nothing. `lookup` may be NULL. An error leaves *out with 0
// tokens.
PREFIXD_API prefixd_status prefixd_match(prefixd_space* space, const uint32_t* tokens, size_t count,
                                         const prefixd_lookup* lookup, prefixd_match_info* out);

// Hints that a request with these tokens is queued: the daemon reads what of them is on SSD into
// its RAM, after what others wait for. Nothing is held. *there, which may be NULL, gets the tokens
// that will be there, 0 with an error. Since version 4.
PREFIXD_API prefixd_status prefixd_prefetch(prefixd_space* space, const uint32_t* tokens,
                                            size_t count, const prefixd_lookup* lookup,
                                            uint32_t* there);

typedef struct prefixd_lease prefixd_lease;
// Looks the tokens up, leases what is cached and starts loading it. `lookup` and `out` may be NULL.
// A result of NULL is a lease of 0 tokens, as good as any other.
PREFIXD_API prefixd_lease* prefixd_acquire(prefixd_space* space, const uint32_t* tokens,
                                           size_t count, const prefixd_lookup* lookup,
                                           prefixd_match_info* out);

// One request in several spaces: a draft model beside its target, or the ranks of a model. Since
// version 3.
typedef struct prefixd_set_member {
  size_t size;
  prefixd_space* space;          // all of one client
  const prefixd_lookup* lookup;  // may be NULL; the longest of all `deadline_ms` counts
} prefixd_set_member;
// Looks the tokens up in all spaces in one round trip, at most 64 of them. leases[i] is the lease
// of members[i]. All begin at one length, the longest that can be restored in each. A lease may
// shrink alone while it loads. The least that prefixd_wait_all() of any lease finally returned is
// good in all, except with sliding or state layers, where a shorter length is worth 0 tokens. Where
// nothing is found leases[i] is NULL or a lease of 0 tokens. `out`, if not NULL, has `member_count`
// entries of one `size`.
PREFIXD_API prefixd_status prefixd_acquire_set(const prefixd_set_member* members,
                                               size_t member_count, const uint32_t* tokens,
                                               size_t count, prefixd_lease** leases,
                                               prefixd_match_info* out);
// Returns the tokens that need not be computed. May shrink until prefixd_wait_all() has returned.
PREFIXD_API uint32_t prefixd_restorable_tokens(const prefixd_lease* lease);
// Blocks until the pages of `layer`, or of all layers, are here, at most `deadline_ms` (0 = as long
// as the load may take). Pages that are not here by then are not used. Returns the restorable
// tokens.
PREFIXD_API uint32_t prefixd_wait(prefixd_lease* lease, uint32_t layer, uint32_t deadline_ms);
PREFIXD_API uint32_t prefixd_wait_all(prefixd_lease* lease, uint32_t deadline_ms);

// K or V of one layer, packed: codes [kv_heads, tokens, bytes of codes], scales and biases
// [kv_heads, tokens, bytes]. Rows are dense; strides are in bytes, 0 = dense over the tokens of the
// call. Raw and ggml formats use `codes` alone. prefixd_write_packed() only reads.
typedef struct prefixd_planes {
  size_t size;
  void* codes;
  void* scales;
  void* biases;
  size_t codes_head_stride, codes_token_stride;
  size_t scales_head_stride, scales_token_stride;  // of scales and biases
} prefixd_planes;

// Copies tokens [begin, begin + count) of `layer` out, bit for bit as they are stored. Waits for
// the layer. Copies nothing unless it returns PREFIXD_OK. PREFIXD_FAILED_PRECONDITION if the tokens
// exceed prefixd_restorable_tokens(), are in several formats or, in a sliding layer, are neither in
// its window nor among its sinks.
PREFIXD_API prefixd_status prefixd_gather(prefixd_lease* lease, uint32_t layer, uint32_t begin,
                                          uint32_t count, const prefixd_planes* key,
                                          const prefixd_planes* value);

// K or V of one layer as elements [kv_heads, tokens, dim]. Rows are dense; strides are in bytes, a
// multiple of the element's, 0 = dense over the tokens of the call. prefixd_write_rows() only
// reads. Since version 10.
typedef struct prefixd_rows {
  size_t size;
  void* data;
  uint32_t dtype;     // PREFIXD_F32 ...: of the elements, whatever is stored
  uint32_t reserved;  // 0
  size_t head_stride, token_stride;
} prefixd_rows;

// prefixd_gather() for engines that compute on elements: fills tokens [begin, begin + count) of
// `layer`, dequantized from whatever they are stored in and rounded to `dtype`. In the dtype of an
// MLX format these are the elements that MLX gives, bit for bit. The tokens may be in several
// formats; else its contract is that of prefixd_gather(). One thread computes. `value` may be NULL
// for a layer that stores no values. Since version 10.
PREFIXD_API prefixd_status prefixd_gather_rows(prefixd_lease* lease, uint32_t layer, uint32_t begin,
                                               uint32_t count, const prefixd_rows* key,
                                               const prefixd_rows* value);

// Copies out the state of `layer` after exactly prefixd_restorable_tokens(). Fails if that is 0.
// Waits for the layer. PREFIXD_INVALID_ARGUMENT if the layer has no state of this size. Since
// version 2.
PREFIXD_API prefixd_status prefixd_get_state(prefixd_lease* lease, uint32_t layer, void* state,
                                             size_t bytes);

// One layer of one KV block, as attention kernels read it; 128-byte aligned. Holds a unit for each
// head of K, then one for each of V. A unit is the codes, the scales, then the biases of
// page_tokens rows, padded to 128 bytes. Tiled units hold the same in the order of
// src/quant/tiled.h.
typedef struct prefixd_block {
  const void* units;      // NULL in a sliding layer if no later token attends on the block
  uint64_t arena_offset;  // of `units` in the daemon's memory; all ones = private memory
  uint32_t page_tokens;   // token slots that the bytes were laid out for
  uint32_t tokens;        // slots in use
  uint32_t format;        // index into the layer's formats
} prefixd_block;
// Gives the blocks of `layer` in position order, valid until the lease is released. Waits for the
// layer. Returns how many there are. Counts as reading them all.
PREFIXD_API size_t prefixd_table(prefixd_lease* lease, uint32_t layer,
                                 const prefixd_block** blocks);

// Names the bytes at `units` of a block, as prefixd/cuda.h wants it: where two names are equal, the
// bytes are. A page that was stored again with other bytes has another name, and each layer its
// own. {0, 0}: no name.
typedef struct prefixd_page_name {
  uint64_t high, low;
} prefixd_page_name;
// Gives the names of the blocks of prefixd_table(), in its order. A page keeps its name when it
// moves or comes back from SSD. None where pages are copied through the socket, or a block has more
// than 6 items of content. Waits as prefixd_table(), but does not count as reading. Fills at most
// `capacity`; returns how many there are. Since version 13.
PREFIXD_API size_t prefixd_page_names(prefixd_lease* lease, uint32_t layer,
                                      prefixd_page_name* names, size_t capacity);

// The daemon's memory as this process maps it, read-only, in slabs: for prefixd_cuda_pin(). Only
// slabs in service have memory, and touching others takes memory from the host.
typedef struct prefixd_arena {
  size_t size;
  const void* base;     // where arena_offset is 0
  uint64_t bytes;       // of the mapping from there on
  uint64_t slab_bytes;  // no page crosses a multiple of it
  // service[i * service_stride]: of slab i, odd while the slab is in service. Written by the
  // daemon. It changes before the slab loses its memory; a slab with a leased page does not lose
  // it.
  const uint64_t* service;
  uint64_t service_stride;
  void* mapping;  // keeps it, whatever becomes of leases, client and daemon
  // Since version 16; for prefixd_cuda_pin_options. Call it with pinned = 1 before the slabs
  // [slab, slab + slabs) are pinned for a device, look at `service` again, and call it with 0 once
  // they are not pinned any more; each device for itself. prefixd waits a while for what leaves
  // service, and its stats say what is pinned. Returns 0 if prefixd does not know yet: call it
  // again, with slabs = 0, until it does. May take 1 s. Not after prefixd_drop_arena().
  int (*tell)(void* teller, uint64_t slab, uint64_t slabs, int pinned);
  void* teller;
} prefixd_arena;
// Gives the mapping that the lease's pages are read from, to be given back by
// prefixd_drop_arena(). After prefixd restarts, new leases may have another one.
// PREFIXD_NOT_FOUND where pages are copied through the socket. Since version 15.
PREFIXD_API prefixd_status prefixd_lease_arena(const prefixd_lease* lease, prefixd_arena* out);
PREFIXD_API void prefixd_drop_arena(prefixd_arena* arena);  // `arena` is empty then

typedef struct prefixd_stored_run {  // tokens [begin, end)
  uint32_t begin, end;
  uint32_t format;    // index into the layer's formats
  uint32_t reserved;  // 0
} prefixd_stored_run;
// Gives the runs of restorable tokens of `layer` that one prefixd_gather() can copy; of a sliding
// layer only those that it has. Waits as prefixd_table(), but does not count as reading. Fills at
// most `capacity`; returns how many there are. Since version 5.
PREFIXD_API size_t prefixd_stored_runs(prefixd_lease* lease, uint32_t layer,
                                       prefixd_stored_run* runs, size_t capacity);

#define PREFIXD_NONE_USED UINT32_MAX
typedef struct prefixd_used {  // what a lease was worth
  size_t size;
  // Tokens that were not computed again. 0 = up to the furthest token that prefixd_gather(),
  // prefixd_get_state() or prefixd_table() gave. PREFIXD_NONE_USED (since version 5) = none.
  uint32_t used_tokens;
  uint64_t first_token_us;  // from the request to its first token
  // The rate at which they would have been computed. 0 = the rate that the lookup told, else the
  // one that a release in this space told last.
  double prefill_tokens_per_s;
} prefixd_used;
// Gives the pages back and frees the handle. `used` may be NULL: all members are 0.
PREFIXD_API void prefixd_release(prefixd_lease* lease, const prefixd_used* used);

// --- storing ---

typedef struct prefixd_plan prefixd_plan;

typedef struct prefixd_reserve_options {
  size_t size;
  const prefixd_content* content;
  uint32_t content_count;
  uint32_t deadline_ms;   // 0 = 200
  uint32_t write_format;  // index of the format that prefixd_write_packed() brings
  uint32_t turn_end_count;
  const uint32_t* turn_ends;  // further sequence ends, in tokens; at most 4,096
  uint64_t readable;          // mask of formats; a block stored in one is not written; 0 = all
  // Since version 3. Mask of formats that prefixd_write_packed() may bring instead of write_format
  // while the daemon advises coarser ones; prefixd_missing_formats() says which. 0: never.
  uint64_t coarser_formats;
} prefixd_reserve_options;

// Asks the daemon what the cache lacks of the tokens and announces that this worker stores it.
// `options` may be NULL. Without a daemon the plan has nothing to write.
PREFIXD_API prefixd_plan* prefixd_reserve(prefixd_space* space, const uint32_t* tokens,
                                          size_t count, const prefixd_reserve_options* options);

typedef struct prefixd_run {  // tokens [begin, end)
  uint32_t begin, end;
} prefixd_run;
// Gives the runs of blocks to write, in position order. For each, write every layer, then commit
// run.end. Fills at most `capacity`; returns how many there are.
PREFIXD_API size_t prefixd_missing(const prefixd_plan* plan, prefixd_run* runs, size_t capacity);

// Gives the format of each run of prefixd_missing(), an index into the layers' formats, that
// prefixd_write_packed() brings there. Fills at most `capacity`; returns how many there are. Since
// version 3.
PREFIXD_API size_t prefixd_missing_formats(const prefixd_plan* plan, uint32_t* formats,
                                           size_t capacity);

// Takes packed bytes of tokens [begin, begin + count) of `layer`, stored as they are. Passes over
// tokens of blocks that are not to be written: a whole tensor may be given.
PREFIXD_API prefixd_status prefixd_write_packed(prefixd_plan* plan, uint32_t layer, uint32_t begin,
                                                uint32_t count, const prefixd_planes* key,
                                                const prefixd_planes* value);

// prefixd_write_packed() for elements: quantizes them straight into the pages, in the format that
// prefixd_missing_formats() tells of each block. Codes, scales and biases are those of MLX's and
// ggml's own CPU code, bit for bit. Since version 10.
PREFIXD_API prefixd_status prefixd_write_rows(prefixd_plan* plan, uint32_t layer, uint32_t begin,
                                              uint32_t count, const prefixd_rows* key,
                                              const prefixd_rows* value);

// Gives, for state layers, the positions, ascending, at which the cache wants their states. States
// at other positions may be put too. Fills at most `capacity`; returns how many there are. Since
// version 2.
PREFIXD_API size_t prefixd_snapshots_wanted(const prefixd_plan* plan, uint32_t* positions,
                                            size_t capacity);
// Copies in the state of `layer` after exactly `tokens` tokens. The prefixd_commit() that reaches
// `tokens` stores it if every state layer gave its state there. Since version 2.
PREFIXD_API prefixd_status prefixd_put_state(prefixd_plan* plan, uint32_t layer, uint32_t tokens,
                                             const void* state, size_t bytes);

typedef struct prefixd_commit_options {
  size_t size;
  uint32_t sequence_end;  // 1: a sequence ends there
  uint32_t deadline_ms;   // 0 = 10000
  uint32_t on_ssd;        // 1: return once it is synced on SSD, or cannot be
} prefixd_commit_options;
typedef struct prefixd_commit_info {
  size_t size;
  uint32_t stored_tokens, duplicate_tokens;
  uint32_t on_ssd;  // 1: it was asked for and reached
} prefixd_commit_info;
// Publishes blocks up to `tokens`, which is a block border or the end. An error only costs a later
// miss. `options` and `out` may be NULL.
PREFIXD_API prefixd_status prefixd_commit(prefixd_plan* plan, uint32_t tokens,
                                          const prefixd_commit_options* options,
                                          prefixd_commit_info* out);
// Gives up what was not committed and frees the handle.
PREFIXD_API void prefixd_abandon(prefixd_plan* plan);

// --- attention ---

typedef struct prefixd_attend_options {
  size_t size;
  uint32_t query_rows;   // 0 = 1
  uint32_t query_heads;  // a multiple of kv_heads
  uint32_t kv_heads, key_dim, value_dim;
  uint32_t first_position;  // of query row 0; row i sees positions <= first_position + i
  float scale;
  uint32_t threads;                            // 0 = 1
  size_t query_row_stride, query_head_stride;  // in floats; 0 = dense [rows][heads][dim]
  size_t out_row_stride, out_head_stride;
  // Since version 2. If not 0, the row at position p sees only positions > p - window and positions
  // < sink_tokens.
  uint32_t window, sink_tokens;
} prefixd_attend_options;
// Computes fused attention over the blocks of one layer, on the packed bytes. `formats`: those of
// the layer.
PREFIXD_API prefixd_status prefixd_attend(const prefixd_block* blocks, size_t block_count,
                                          const prefixd_format* formats, size_t format_count,
                                          const float* q, float* out,
                                          const prefixd_attend_options* options);

#ifdef __cplusplus
}  // extern "C"
#endif
#endif  // PREFIXD_H_
