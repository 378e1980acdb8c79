// prefixd/cuda.h: the C functions of libprefixd_cuda.so, for engines that compute on NVIDIA GPUs:
// cached pages travel from the daemon's memory to the GPU, are attended on as they lie or expanded
// into an engine's tensors, and new keys and values are quantized on the GPU. C11 and C++. Types
// and status codes are those of prefixd.h; the library itself is not needed.
//
// Contract
//  - No call ends the process or throws. A function that can fail returns a prefixd_status, or
//    NULL; prefixd_cuda_last_error() then says why. Arguments are checked before anything is
//    queued on the GPU. What cannot be checked is whether an address is one that the GPU can read.
//  - Structs that may grow begin with `size`, as in prefixd.h.
//  - A `stream` is a cudaStream_t; NULL is the legacy default stream. Calls that take one queue
//    work there and return, except where they say that they wait. They do not synchronize the
//    device, and can be captured into a CUDA graph where they say so.
//  - Contexts and arenas are thread-safe. A load or an attention belongs to one thread at a time.
//    Free what a context gave before the context.
//  - The current device of the calling thread is the context's device after every call.
//  - "Memory of the GPU's" below is device memory, or host memory that the GPU can read at the same
//    address: what prefixd_cuda_pin() has pinned, or prefixd_cuda_alloc_host() gave.
//  - Functions and members are added, never changed; each time the version of
//    prefixd_cuda_abi_version() grows.
#ifndef PREFIXD_CUDA_H_
#define PREFIXD_CUDA_H_
#include <stddef.h>
#include <stdint.h>

#include "prefixd.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PREFIXD_CUDA_ABI_VERSION 6

// Returns the library's version. Must be at least PREFIXD_CUDA_ABI_VERSION of the caller's header.
PREFIXD_API uint32_t prefixd_cuda_abi_version(void);
// Returns why this thread's last call failed; "" if it did not. Never NULL. Valid until the
// thread's next call. Freeing a handle does not change it.
PREFIXD_API const char* prefixd_cuda_last_error(void);
PREFIXD_API prefixd_status prefixd_cuda_last_status(void);

// --- context: one GPU ---

typedef struct prefixd_cuda prefixd_cuda;

typedef struct prefixd_cuda_options {
  size_t size;
  int32_t device;         // ordinal of CUDA's
  uint32_t copy_threads;  // that bounce pages which are not pinned; 0 = 4
  uint64_t bounce_bytes;  // pinned memory for them, allocated when it is first used; 0 = 64 MiB
} prefixd_cuda_options;

// Returns NULL with PREFIXD_UNAVAILABLE where there is no driver or no such GPU. `options` may be
// NULL.
PREFIXD_API prefixd_cuda* prefixd_cuda_open(const prefixd_cuda_options* options);
PREFIXD_API void prefixd_cuda_close(prefixd_cuda* cuda);

typedef struct prefixd_cuda_facts {
  size_t size;
  char name[64];
  uint32_t major, minor;  // compute capability
  uint32_t processors;
  uint32_t pins_read_only;  // 1: mappings that this process may only read can be pinned
  uint64_t memory_bytes;
  uint32_t clock_khz, memory_clock_khz;
} prefixd_cuda_facts;
PREFIXD_API prefixd_status prefixd_cuda_describe(const prefixd_cuda* cuda, prefixd_cuda_facts* out);

// Pinned host memory that the GPU reads and writes at the same address, for packed rows on their
// way to prefixd_write_packed().
PREFIXD_API void* prefixd_cuda_alloc_host(prefixd_cuda* cuda, size_t bytes);
PREFIXD_API void prefixd_cuda_free_host(prefixd_cuda* cuda, void* memory);

// --- pin: the daemon's memory, read by the GPU where it lies ---

typedef struct prefixd_cuda_arena prefixd_cuda_arena;

typedef struct prefixd_cuda_pin_options {
  size_t size;
  uint64_t slab_bytes;   // no page crosses a multiple of it from `base`; 0 = 2 MiB
  uint64_t slice_bytes;  // registered at a time, rounded up to slabs; 0 = 32 MiB
  uint32_t pause_us;     // between two slices, for other CUDA calls, which wait while one is pinned
  uint32_t background;   // 1: return at once and pin on a thread; 0: return when it is done
  // Since version 4: those of prefixd_lease_arena(), which must stay mapped. A slice is then a
  // slab.
  const uint64_t* service;
  uint64_t service_stride;
  // Since version 6: those of prefixd_lease_arena(). prefixd then waits until a slab that leaves
  // service is not pinned any more before it takes its memory, and says how much is pinned.
  int (*tell)(void* teller, uint64_t slab, uint64_t slabs, int pinned);
  void* teller;
} prefixd_cuda_pin_options;

// Pins the mapping [base, base + bytes), which may be PROT_READ: the GPU can then read it and never
// write it. GPUs of one process share what is pinned. `base` is 4 KiB aligned. Slices that the
// driver refuses stay unpinned and are counted; loads copy what is in them through a bounce buffer.
// `options` may be NULL.
//
// With `service`, base, bytes and slab_bytes of prefixd_lease_arena(): the slabs in service are
// pinned, and until prefixd_cuda_unpin() a thread looks every tenth of a second for those that came
// into service, and unpins those that left it. Until then such a slab is read through the bounce
// buffer.
// Without it every page of the mapping's file is allocated, which is more than the daemon's budget,
// and the file must not be truncated, nor have holes punched: the GPU would read the old pages.
PREFIXD_API prefixd_cuda_arena* prefixd_cuda_pin(prefixd_cuda* cuda, const void* base,
                                                 uint64_t bytes,
                                                 const prefixd_cuda_pin_options* options);
// Stops pinning, unpins and frees the handle. Nothing on the GPU may still read the arena.
PREFIXD_API void prefixd_cuda_unpin(prefixd_cuda_arena* arena);

typedef struct prefixd_cuda_pin_state {
  size_t size;
  uint64_t bytes;         // to pin: of slabs in service, or of the mapping
  uint64_t pinned_bytes;  // so far
  uint64_t slice_bytes;
  uint32_t slices, pinned_slices, refused_slices;
  uint32_t finished;      // 1: every slice was tried
  char why_refused[128];  // of the first refused slice
} prefixd_cuda_pin_state;
PREFIXD_API void prefixd_cuda_pin_progress(const prefixd_cuda_arena* arena,
                                           prefixd_cuda_pin_state* out);
// Returns 1 if every byte of [address, address + bytes) is pinned.
PREFIXD_API int32_t prefixd_cuda_is_pinned(const prefixd_cuda_arena* arena, const void* address,
                                           uint64_t bytes);
// Copies bytes of the arena to device memory: one copy for each pinned slice that it touches, and
// through a bounce buffer what is not pinned. Waits only for room in that buffer.
PREFIXD_API prefixd_status prefixd_cuda_copy(prefixd_cuda* cuda, void* to, const void* from,
                                             uint64_t bytes, void* stream);

// --- tensors of an engine ---

// K or V of one layer as an engine keeps it in device memory. The element of (token, head, channel)
// is at data[block * block_stride + slot * token_stride + head * head_stride +
// channel / split * split_stride + channel % split], where a block holds `block_tokens` tokens,
// block = table[token / block_tokens] and slot = token % block_tokens.
//   contiguous [heads, tokens, dim]          block_tokens 0; no table: token is the slot
//   vLLM [blocks, tokens, heads, dim]        block_tokens = its block size, table = block ids
//   SGLang [slots, heads, dim]               block_tokens 1, table = slots
//   K of [blocks, heads, dim/x, tokens, x]   split x, split_stride = tokens * x, token_stride = x
//   V of [blocks, heads, dim, tokens]        split 1, split_stride = tokens, token_stride = 1
// Strides count elements.
// Since version 5 elements may be PREFIXD_CUDA_F8: fp8 e4m3 without infinities (float8_e4m3fn), of
// which each stands for itself times `scale`. Numbers that are loaded into one are divided by the
// scale and rounded to the nearest, halves to even; those beyond 448 become 448.
enum { PREFIXD_CUDA_F8 = 16 };
typedef struct prefixd_cuda_tensor {
  size_t size;
  void* data;
  uint32_t dtype;         // PREFIXD_F16, PREFIXD_BF16, PREFIXD_F32 or PREFIXD_CUDA_F8
  uint32_t block_tokens;  // 0 = contiguous
  int64_t block_stride, token_stride, head_stride;
  uint32_t split;     // channels side by side; 0 = dim
  uint32_t reserved;  // 0
  int64_t split_stride;
  float scale;         // since version 5: of PREFIXD_CUDA_F8; 0 = 1
  uint32_t reserved2;  // 0
} prefixd_cuda_tensor;

// --- device pages: cached pages that stay in device memory ---
// All since version 2.

// Reserves `budget_bytes` of device memory for pages that loads of this context name: what one load
// brought, a later one reads there, without a byte over PCIe. The page that was not used for the
// longest time goes when there is no room; one that a load uses stays. Without this call, or where
// it fails, loads work as ever. Once for each context; close frees it.
// PREFIXD_EXHAUSTED if the GPU has less memory; PREFIXD_FAILED_PRECONDITION the second time.
PREFIXD_API prefixd_status prefixd_cuda_keep_pages(prefixd_cuda* cuda, uint64_t budget_bytes);
// No page that is there now is found again; use it when a space was cleared. Pages in use go when
// their loads end.
PREFIXD_API void prefixd_cuda_forget_pages(prefixd_cuda* cuda);

typedef struct prefixd_cuda_page_counts {
  size_t size;
  uint64_t budget_bytes;              // 0: prefixd_cuda_keep_pages() was not called, or failed
  uint64_t used_bytes, in_use_bytes;  // of the budget; of these, what loads use now
  uint64_t pages;                     // a page here is one layer of a block
  uint64_t hits, hit_bytes;           // since the context was opened
  uint64_t misses, missed_bytes;      // named pages that were not there
  uint64_t evictions, evicted_bytes;
  uint64_t no_room;  // misses that were not kept: all else was in use
} prefixd_cuda_page_counts;
PREFIXD_API prefixd_status prefixd_cuda_page_state(prefixd_cuda* cuda,
                                                   prefixd_cuda_page_counts* out);

// --- load ---

typedef struct prefixd_cuda_load prefixd_cuda_load;

// Names the bytes of one layer of a block, as prefixd_page_names() does. Where two names are equal,
// and sizes too, bytes must be. {0, 0}: the page has no name and is not kept.
typedef prefixd_page_name prefixd_cuda_page_name;

typedef struct prefixd_cuda_load_layer {
  size_t size;
  const prefixd_block* blocks;  // as prefixd_table() gives them
  size_t block_count;
  const prefixd_format* formats;  // of the layer
  uint32_t format_count;
  // Dims: multiples of 8, at most 256; keys that hold the values too may have more, `values`.
  uint32_t kv_heads, key_dim, value_dim;
  // Either both tensors, to expand the pages into...
  const prefixd_cuda_tensor* key;
  const prefixd_cuda_tensor* value;
  // ...or where the units of each block go as they are: device memory, 128-byte aligned.
  void* const* pages;
  // Since version 2. NULL, or the names of the blocks, to use device pages.
  const prefixd_cuda_page_name* names;
  // Since version 2. NULL, or where the address of each block's units in device memory is written,
  // for prefixd_cuda_attention_set(): of its device page, which is not copied and must only be
  // read until the load ends; of pages[i], if `pages` is given, for a block that is not kept; else
  // NULL. Tensors must be NULL. Bytes are there after prefixd_cuda_load_wait().
  const void** resident;
  // Since version 5. PREFIXD_VALUES_KEY_PREFIX: pages hold keys alone (MLA's latent), of 8 to 576
  // elements, multiples of 64 above 256. `value` must be NULL; value_dim and the formats' values
  // are not read. PREFIXD_VALUES_STORED, or 0: keys and values.
  uint32_t values;
  uint32_t reserved;  // 0
} prefixd_cuda_load_layer;

typedef struct prefixd_cuda_load_options {
  size_t size;
  const prefixd_cuda_load_layer* layers;  // all of one `size`
  uint32_t layer_count;
  uint32_t begin, count;  // tokens to expand; count 0 = all from `begin`. Pages: whole blocks
  uint32_t table_count;
  // Host memory, read before the call returns. Entry i is the engine's block of tokens
  // [i * block_tokens, ...) of the sequence.
  const int32_t* table;
  // NULL = one of the context's. What is queued on it after the call sees all layers.
  void* stream;
  // NULL, or a cudaEvent_t: the GPU waits for it before it writes to tensors and pages.
  void* after;
} prefixd_cuda_load_options;

// Starts to load layer after layer. Pages in device memory are read where they lie. Pages in host
// memory that is not pinned are copied by the CPU first, and the call waits for that. The leases
// must be held until prefixd_cuda_load_end(). Elements are those of prefixd_gather_rows(), bit for
// bit; those of PREFIXD_CUDA_F8 are made from its floats.
PREFIXD_API prefixd_cuda_load* prefixd_cuda_load_begin(prefixd_cuda* cuda,
                                                       const prefixd_cuda_load_options* options);
// Lets `stream` wait until `layer` is loaded. The CPU does not wait.
PREFIXD_API prefixd_status prefixd_cuda_load_wait(prefixd_cuda_load* load, uint32_t layer,
                                                  void* stream);
// Returns 1 if `layer` is loaded, 0 if it is on its way or failed.
PREFIXD_API int32_t prefixd_cuda_load_ready(prefixd_cuda_load* load, uint32_t layer);

typedef struct prefixd_cuda_load_counts {
  size_t size;
  uint64_t pinned_bytes;   // read in place
  uint64_t bounced_bytes;  // copied by the CPU first
  uint64_t kept_bytes;     // since version 2: were in device pages
} prefixd_cuda_load_counts;
// The device pages of the load stay in use until what is queued on `stream` now is done, also after
// prefixd_cuda_load_end(). Call it after the last kernel that reads `resident` pages was queued.
// Since version 2.
PREFIXD_API prefixd_status prefixd_cuda_load_keep(prefixd_cuda_load* load, void* stream);
// Waits for all layers and frees the handle. `out` may be NULL.
PREFIXD_API prefixd_status prefixd_cuda_load_end(prefixd_cuda_load* load,
                                                 prefixd_cuda_load_counts* out);

// --- store ---

typedef struct prefixd_cuda_quantize_options {
  size_t size;
  const prefixd_cuda_tensor* rows;
  prefixd_tensor_format format;  // MLX affine, q8_0, q4_0 or raw; rows or tiled
  uint32_t value;                // 1: V, which tiled units order differently
  // dim: a multiple of 8, at most 256. Since version 5 keys may have up to 576, multiples of 64.
  uint32_t kv_heads, dim;
  uint32_t begin, count;  // tokens of `rows`
  const int32_t* table;   // of `rows`, in host memory, read before the call returns
  uint32_t table_count;
  // Tokens go to slots [first_slot, ...) of the first page, then to the slots from 0 of the next
  // ones. pages[i]: the first head's unit, in memory of the GPU's, 128-byte aligned. Units of heads
  // are `unit_stride` bytes apart (0 = prefixd_cuda_unit_bytes()).
  uint32_t page_tokens;
  void* const* pages;
  uint32_t page_count;
  uint32_t first_slot;
  uint64_t unit_stride;
} prefixd_cuda_quantize_options;
// Quantizes rows into units. Codes, scales and biases are those of prefixd_write_rows(), bit for
// bit, for finite elements. Other bytes of the units stay as they are: zero a new unit first.
PREFIXD_API prefixd_status prefixd_cuda_quantize(prefixd_cuda* cuda,
                                                 const prefixd_cuda_quantize_options* options,
                                                 void* stream);
// Returns the bytes of a unit; 0 if the format is impossible for rows of `dim`.
PREFIXD_API uint64_t prefixd_cuda_unit_bytes(const prefixd_tensor_format* format, uint32_t dim,
                                             uint32_t page_tokens);
// Fills `out` for a unit in layout rows that holds `page_tokens` tokens for each head, so that
// prefixd_write_packed() takes what prefixd_cuda_quantize() wrote.
PREFIXD_API prefixd_status prefixd_cuda_planes(const prefixd_tensor_format* format, uint32_t dim,
                                               uint32_t page_tokens, void* units,
                                               prefixd_planes* out);

// --- attend ---

typedef struct prefixd_cuda_attention prefixd_cuda_attention;

typedef struct prefixd_cuda_attention_options {
  size_t size;
  const prefixd_format* formats;  // of the layers
  uint32_t format_count;
  // 1 to 2048 since version 3, before that 1 to 8; 0 = 1. More than 8 rows have a kernel of their
  // own on Hopper (9.0); elsewhere, if precise, and over MLA's keys they take the time of strips.
  // That kernel expands MLX's 8 and 4 bits in groups of 64 of dim 128, in rows of pages of a
  // multiple of 8 tokens. Other pages, and those in an arena, are expanded before it to device
  // memory that the call takes and gives back (cudaMallocAsync): 33 KB (dims beyond 128: 66 KB) for
  // 64 tokens, or a page of fewer, of a kv head. Where there is none, it takes the time of strips.
  uint32_t query_rows;
  uint32_t query_heads;  // 1 to 16 for each kv head, see `values`
  uint32_t kv_heads;
  uint32_t key_dim, value_dim;  // multiples of 8, at most 256, see `values`
  float scale;
  // If not 0, the row at position p sees only positions > p - window and positions < sink_tokens.
  uint32_t window, sink_tokens;
  float soft_cap;    // if not 0, a score is soft_cap * tanh(q.k * scale / soft_cap)
  uint32_t precise;  // 1: sums of floats for every format. 0: tensor cores where a format has them
  // 1: the pages and the work list of each call were complete before the kernel before it on the
  // stream began. A call may then start to read pages while that kernel ends.
  uint32_t early;
  // Since version 5. PREFIXD_VALUES_KEY_PREFIX: the values are the first value_dim elements of the
  // keys, which pages hold alone (MLA's latent, 576 and 512). key_dim is then at most 576,
  // value_dim at most 512, query heads are 1 to 128 for each kv head, and sums are those of floats.
  // PREFIXD_VALUES_STORED, or 0: pages hold both.
  uint32_t values;
} prefixd_cuda_attention_options;

// Makes what attends with one shape: for a layer, or for layers whose units lie behind each other
// in the pages of one group.
PREFIXD_API prefixd_cuda_attention* prefixd_cuda_attention_new(
    prefixd_cuda* cuda, const prefixd_cuda_attention_options* options);
PREFIXD_API void prefixd_cuda_attention_free(prefixd_cuda_attention* attention);

// Returns how many query rows one call attends on at full speed with these options, whatever their
// query_rows: 2048 where the kernel for many rows takes them, in every format, else 8, and 0 if
// the options are refused. Since version 3.
PREFIXD_API uint32_t prefixd_cuda_attention_rows(prefixd_cuda* cuda,
                                                 const prefixd_cuda_attention_options* options);

typedef struct prefixd_cuda_sequence {
  const prefixd_block* blocks;  // `units` in memory of the GPU's; NULL where no row sees the block
  size_t block_count;
  uint32_t first_position;  // of query row 0; row i sees positions <= first_position + i
  uint32_t reserved;        // 0
} prefixd_cuda_sequence;
// Sets the sequences of the calls to come and queues their work list on `stream`; calls on other
// streams must wait for it, and it for them. Blocks are read before the call returns. May allocate
// device memory, which waits for the GPU, when there is more work than ever before. What was
// captured before is no longer valid. PREFIXD_INVALID_ARGUMENT if query rows times heads of all
// sequences are more than 4,194,304. PREFIXD_FAILED_PRECONDITION if a block is in an arena of this
// context's and not pinned.
PREFIXD_API prefixd_status prefixd_cuda_attention_set(prefixd_cuda_attention* attention,
                                                      const prefixd_cuda_sequence* sequences,
                                                      uint32_t sequence_count, void* stream);

// Rows of queries or results: [sequence][row][head][dim], in device memory. Strides count elements,
// 0 = dense. The last dimension is dense and 16-byte aligned.
typedef struct prefixd_cuda_heads {
  void* data;
  uint32_t dtype;     // PREFIXD_F16, PREFIXD_BF16 or PREFIXD_F32
  uint32_t reserved;  // 0
  int64_t sequence_stride, row_stride, head_stride;
} prefixd_cuda_heads;
// Queues attention over the units of `layer`, which lie `layer` times a layer's bytes behind those
// that prefixd_cuda_attention_set() was given. sink_logits: [query_heads] floats in device memory,
// or NULL. Calls of one attention run one after the other: use one stream, or order them by events.
// The result of one shape and work list has the same bits each time. Can be captured.
PREFIXD_API prefixd_status prefixd_cuda_attend(prefixd_cuda_attention* attention, uint32_t layer,
                                               const prefixd_cuda_heads* queries,
                                               const prefixd_cuda_heads* results,
                                               const float* sink_logits, void* stream);

#ifdef __cplusplus
}  // extern "C"
#endif
#endif  // PREFIXD_CUDA_H_
