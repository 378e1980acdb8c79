// prefixd/client.h: the one header an inference engine includes. Standard-library types only; the
// library behind it brings its own gRPC and protobuf.
//
// Contract
//  - No call throws, aborts or outlives its deadline. Without a daemon Begin() answers 0 tokens at
//    once and the client attaches in the background. A cache error never fails a request.
//  - All objects are handles, cheap to move. Client and Space are thread-safe. A Sequence, Lease or
//    Plan belongs to one thread at a time (its pages load in the background) and must not outlive
//    its Client.
//  - Create them after fork(), not before: a child has none of their memory mapped, and does not
//    keep the daemon from freeing what its parent held.
//  - An engine whose attention walks block tables uses a Sequence. An engine that owns its KV
//    memory, one tensor per layer, uses a Lease to copy cached tokens out and a Plan to store its
//    own.
//  - Append quantizes K and V once. Attention over cached tokens reads exactly the stored bytes.
//  - If the daemon shares its memory (a unix socket on this host), cached pages are read in place,
//    in a read-only mapping, and block tables point into it. Pages that the worker stores move
//    there. Both stay readable while the Sequence lives, even if the daemon is killed. Otherwise
//    pages are copied.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "prefixd/block_table.h"
#include "prefixd/format.h"

namespace prefixd {

// --- results ---

enum class StatusCode {
  kOk = 0,
  kInvalidArgument,
  kNotFound,
  kUnavailable,
  kDeadline,
  kExhausted,
  kFailedPrecondition,
  kInternal
};

struct Status {
  StatusCode code = StatusCode::kOk;
  std::string message{};  // the daemon's own message if there is one
  bool ok() const { return code == StatusCode::kOk; }
};

template <typename T>
struct Result {
  Status status{};
  std::optional<T> held{};
  bool ok() const { return status.ok(); }
  T& value() { return *held; }  // Requires: ok()
  const T& value() const { return *held; }
};

// --- who: the space ---

using Digest = std::array<std::byte, 32>;
// Returns the SHA-256 of a checkpoint's tensors (*.safetensors in `dir`), computed once and then
// remembered by inode, size and time.
Result<Digest> DigestCheckpoint(const std::string& dir);
Result<Digest> DigestFile(const std::string& path);  // SHA-256 of one file, remembered as well

struct RopeSpec {
  double theta = 0;
  std::string scaling{};
  std::vector<double> scaling_params{};
  uint32_t rotary_dim = 0;
  bool interleaved = false;
  bool key_before_rope = false;
};

struct LayerSpec {
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;
  // 1 to 4 formats, finest first; none for kState. Layers may differ in their number of formats:
  // where a call names a format by its index, an index beyond a layer's last format means that last
  // one.
  std::vector<KvFormat> formats{};
  LayerKind kind = LayerKind::kFull;
  uint32_t window = 0, sink_tokens = 0;  // for kSliding
  uint64_t state_bytes = 0;              // for kState
  ValueSource values = ValueSource::kStored;
  // Index of the layer whose keys and values this layer attends on (Gemma-3n, cross-layer
  // attention); -1 if it has a cache of its own. Set no other field then. Append and store keys and
  // values in that layer, once; Wait, Gather and block_table of this layer mean that layer.
  int32_t reads_layer = -1;
};

struct SpaceSpec {
  std::string model{};
  Digest weights_digest{};
  Digest adapter_digest{};
  Digest tokenizer_digest{};
  bool draft = false;
  Digest target_digest{};
  RopeSpec rope{};
  // With several ranks, every rank is a space of its own: `layers` are those of this rank.
  uint32_t tensor_parallel = 1;
  uint32_t pipeline_parallel = 1;
  uint32_t tensor_rank = 0;
  uint32_t pipeline_rank = 0;
  std::string salt{};
  uint32_t block_tokens = 0;        // 0 = the daemon's default, 64
  std::vector<LayerSpec> layers{};  // the library groups them
};

// --- requests ---

// Names the trace to which the calls of this thread belong from now on, by the headers traceparent
// and tracestate (W3C Trace Context) of the engine's request: a daemon that exports spans puts its
// own below. It goes with what those calls do in threads of the library, too. An empty traceparent
// ends it. InvalidArgument if the traceparent is not well formed: the thread's calls belong to no
// trace then. A tracestate that is not well formed is left out. Costs a call nothing without.
Status SetTrace(const std::string& traceparent, const std::string& tracestate = "");

// Non-token input (an image) under the placeholder tokens [start, start + length). `item_offset`:
// how much of the item stands before `start`.
struct Content {
  uint32_t start = 0, length = 0, item_offset = 0;
  Digest digest{};
};

enum class MatchKind : uint8_t { kExact = 1, kSupersequence, kPrefix, kLcp, kNone };
const char* ToString(MatchKind kind);

inline constexpr uint32_t kNoLimit = ~uint32_t{0};

struct BeginOptions {
  std::span<const Content> content{};
  // Most tokens to restore. A worker that needs logits asks for n - 1; 0 = no lookup.
  uint32_t max_cached_tokens = kNoLimit;
  std::chrono::milliseconds deadline{200};         // of the lookup
  std::chrono::milliseconds load_deadline{10000};  // of loading the pages
  uint64_t readable = ~uint64_t{0};                // mask of the format indexes that it reads
  uint32_t write_format = 0;                       // index of the format that Append writes
  // Append writes blocks that end at or before head_tokens in head_format instead, like mlx-lm's
  // quantized_kv_start. Blocks that are already stored keep their format.
  uint32_t head_tokens = 0;
  uint32_t head_format = 0;
  // Mask of the indexes of coarser formats that Append may write in new blocks instead of
  // write_format while the daemon advises it, which it does when it gives up too much of what is
  // requested again. 0 = never. Such a sequence cannot use WritePacked.
  uint64_t coarser_formats = 0;
  // The rate at which this worker computes tokens. The daemon shortens a hit to where loading is
  // faster than computing. 0 = unknown.
  double prefill_tokens_per_s = 0;
  // How long to wait for another worker that computes tokens of this request; part of `deadline`.
  std::chrono::milliseconds wait_pending{0};
  // Announces at once that this worker will compute what is missing, so that others can wait for
  // it. Saves the first Commit a round trip.
  bool announce = true;
  // Token positions from which a later request may continue, as far as is known: the ends of the
  // prompt and of turns. There, Commit() stores what sliding layers need and declares a sequence
  // end; snapshots of states are wanted one token before.
  std::span<const uint32_t> turn_ends{};
  std::string request_id{};
};

// The result of a lookup, for logs and usage fields.
struct MatchInfo {
  MatchKind kind = MatchKind::kNone;
  uint32_t matched_tokens = 0;
  uint32_t restorable_tokens = 0;
  uint32_t pending_tokens = 0;  // beyond restorable_tokens, announced by another worker
  bool in_place = false;        // pages are read in the daemon's memory, nothing is copied
  uint64_t ram_bytes = 0, ssd_bytes = 0;
  uint64_t remote_bytes =
      0;  // of pages that other hosts stored, on their way from the shared store
  uint64_t estimated_load_us = 0;
  std::string why_shorter{};  // "evicted 64, max_tokens 1"; empty if nothing was lost
  Status status{};            // if not OK, why the cache was not used
};

// Where stored blocks are, at least, when Commit returns.
enum class Durability {
  kRam,  // readable by every worker; survives kill -9 of the daemon, not a power cut
  kSsd,  // synced on SSD; costs a disk write, shared by commits that come together
};

struct CommitOptions {
  bool sequence_end = false;
  Durability durability = Durability::kRam;
  std::chrono::milliseconds deadline{10000};
};
struct CommitInfo {
  uint32_t stored_tokens = 0;
  uint32_t duplicate_tokens = 0;
  // kSsd only if the call asked for it and reached it for all that it stored.
  Durability durability = Durability::kRam;
};

struct ReleaseInfo {
  // For a Lease: up to the furthest token that Gather, block_table or GetState gave. For a
  // Sequence: 0.
  static constexpr uint32_t kAsRead = ~uint32_t{0};
  uint32_t used_tokens = kAsRead;            // tokens that were not computed again
  std::chrono::microseconds first_token{0};  // from the request to its first token
  // The rate at which used_tokens would have been computed. 0 = the rate last told in this space.
  double prefill_tokens_per_s = 0;
};

// Tokens [begin, end) in one format.
struct TokenRun {
  uint32_t begin = 0, end = 0;
  uint32_t format = 0;  // index into formats
};

// K or V of one layer: [kv_heads, tokens, dim]. Elements of a row are contiguous; strides are in
// elements, 0 = dense over the tokens of the call.
struct TensorView {
  const void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  size_t head_stride = 0;
  size_t token_stride = 0;
};
// The same, to be filled.
struct MutableTensorView {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  size_t head_stride = 0;
  size_t token_stride = 0;
};
// K or V of one layer, packed as MLX packs it: codes [kv_heads, tokens, codes bytes], scales and
// biases [kv_heads, tokens, ...]. Rows are dense; strides are in bytes, 0 = dense over the tokens
// of the call. Raw and ggml formats use `codes` alone.
struct PackedView {
  const void* codes = nullptr;
  const void* scales = nullptr;
  const void* biases = nullptr;
  size_t codes_head_stride = 0, codes_token_stride = 0;
  size_t scales_head_stride = 0, scales_token_stride = 0;  // of scales and biases
};
struct MutablePackedView {
  void* codes = nullptr;
  void* scales = nullptr;
  void* biases = nullptr;
  size_t codes_head_stride = 0, codes_token_stride = 0;
  size_t scales_head_stride = 0, scales_token_stride = 0;
};

struct AttendOptions;  // prefixd/attention.h

// One request's KV: cached pages first, then what this worker appends.
class Sequence {
 public:
  Sequence();
  ~Sequence();  // releases
  Sequence(Sequence&&) noexcept;
  Sequence& operator=(Sequence&&) noexcept;

  const MatchInfo& match() const;
  // Tokens that need not be computed. May shrink until Wait() has returned for every layer.
  uint32_t restorable_tokens() const;
  // Blocks until the cached pages of `layer` are here, at most until the load deadline. Returns the
  // usable tokens. If these are fewer than restorable_tokens() was before, a page turned out bad or
  // is late: call Restart() and compute from the length that it returns.
  uint32_t Wait(int layer);
  uint32_t WaitAll();
  // Waits for every layer and drops everything beyond the tokens that are usable in all of them.
  // Returns the number of these tokens.
  uint32_t Restart();

  // Quantizes K and V of tokens [begin, begin + count) of `layer` into the sequence's own pages.
  // Call PushToken() first for tokens that Begin() did not get. InvalidArgument if `begin` leaves a
  // gap or is before the end of the cached tokens.
  Status Append(int layer, uint32_t begin, uint32_t count, const TensorView& key,
                const TensorView& value);
  // The same with packed bytes, which are stored as they are. FailedPrecondition unless all blocks
  // of the range are written in one format.
  Status WritePacked(int layer, uint32_t begin, uint32_t count, const PackedView& key,
                     const PackedView& value);
  // Copies tokens [begin, begin + count) of `layer` out, packed as they are stored.
  // FailedPrecondition if the range has several formats.
  Status Gather(int layer, uint32_t begin, uint32_t count, const MutablePackedView& key,
                const MutablePackedView& value) const;
  // For kState layers: the positions, ascending, at which the cache wants their states. States at
  // other positions may be given too. Valid until the next call that looks up or commits.
  std::span<const uint32_t> snapshots_wanted() const;
  // Copies in the state of `layer` after exactly `tokens` tokens (LayerSpec::state_bytes). The next
  // Commit() that reaches `tokens` stores it if every kState layer gave its state there.
  // InvalidArgument if the layer has no state of this size, or if the cache restored the position.
  Status PutState(int layer, uint32_t tokens, std::span<const std::byte> state);
  // Copies out what PutState() gave at restorable_tokens(). Fails if that is 0. Waits for the
  // layer.
  Status GetState(int layer, std::span<std::byte> state) const;
  // Adds one token to the sequence, a sampled one for example.
  void PushToken(uint32_t token);

  // Blocks of `layer` in position order: cached, then own. Waits for the layer; empty if a page
  // turned out bad. Valid until the next call that changes the sequence.
  std::span<const BlockTableEntry> block_table(int layer);
  // Attends over the blocks of `layer`: Attend() of prefixd/attention.h, which declares the
  // options, on block_table(layer). Give query_heads, first_position and scale, and query_rows if
  // it is not 1. kv_heads, key_dim, value_dim, window and sink_tokens are the layer's: leave them
  // 0. FailedPrecondition if the cached tokens fell short: call Restart().
  Status Attend(int layer, const float* q, float* out, const AttendOptions& options);

  // Stores what the cache lacks of the tokens that every layer has: full blocks and, with
  // sequence_end, the tail. sequence_end also declares that a sequence ends here. An error only
  // costs a later miss.
  Result<CommitInfo> Commit(const CommitOptions& options = {});
  // Commits in the background: a thread of the client stores what is here at this moment while the
  // engine goes on appending, attending and pushing tokens. Every other call that changes the
  // sequence, and Append to a block that is being stored, waits for it first. Returns false, and
  // begins nothing, if an earlier one still runs, if there is nothing to store, or if it cannot
  // begin.
  bool StartCommit(const CommitOptions& options = {});
  // Waits for the commit that StartCommit() began. Returns what all background commits stored since
  // the last FinishCommit(), or the first error.
  Result<CommitInfo> FinishCommit();
  // Ends the lease and tells the daemon what it was worth. The sequence then holds no pages. The
  // destructor does the same with zeros.
  void Release(const ReleaseInfo& info = {});
  // Bytes of pages that are read in the daemon's memory at this moment. Waits for every layer; 0 if
  // a page turned out bad.
  uint64_t in_place_bytes() const;
  // Returns the mapping that cached pages are read from; nullopt without a lease or if they are
  // copied from the socket.
  std::optional<ArenaView> arena() const;
  // From asking for the pages to having them all; 0 before that.
  std::chrono::microseconds load_time() const;

 private:
  friend class Client;
  friend class Space;
  friend class Lease;
  struct Impl;
  explicit Sequence(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// --- engines that own their KV memory ---

// The cached tokens of a request, to be copied out. Holds their pages until it is released.
class Lease {
 public:
  Lease();
  ~Lease();  // releases
  Lease(Lease&&) noexcept;
  Lease& operator=(Lease&&) noexcept;

  static constexpr std::chrono::milliseconds kLoadDeadline = std::chrono::milliseconds::max();

  const MatchInfo& match() const;
  // Tokens that need not be computed. May shrink until WaitAll() has returned, never after.
  uint32_t restorable_tokens() const;
  // Blocks until the pages of `layer` are here. At `deadline`, or at the load deadline, the loading
  // ends and pages that are not here are not used. Returns restorable_tokens().
  uint32_t Wait(int layer, std::chrono::milliseconds deadline = kLoadDeadline);
  uint32_t WaitAll(std::chrono::milliseconds deadline = kLoadDeadline);
  // Copies tokens [begin, begin + count) of `layer` out, packed as they are stored: one copy, from
  // where the pages are. Waits for the layer. FailedPrecondition, with nothing copied, if the
  // tokens exceed restorable_tokens(), are in several formats (BeginOptions::readable chooses one)
  // or, in a sliding layer, are neither in its window nor among its sinks.
  Status Gather(int layer, uint32_t begin, uint32_t count, const MutablePackedView& key,
                const MutablePackedView& value);
  // Gather() for engines that compute on elements: fills the views with tokens [begin, begin +
  // count), dequantized from whatever they are stored in and rounded to the views' types. The
  // tokens may be in several formats.
  Status GatherRows(int layer, uint32_t begin, uint32_t count, const MutableTensorView& key,
                    const MutableTensorView& value);
  Status GetState(int layer, std::span<std::byte> state) const;  // as Sequence::GetState()
  // Returns where the pages of `layer` are, up to restorable_tokens(). Valid until the lease is
  // released. Waits for the layer; if a page turned out bad, for every layer. Counts as reading all
  // of them.
  std::span<const BlockTableEntry> block_table(int layer);
  // Returns a name for each entry of block_table(), for caches of what is read there, as
  // prefixd/cuda.h has one. A page keeps its name when it moves or comes back from SSD. None where
  // pages are copied through the socket, or a block has more than 6 items of content. Waits as
  // block_table(), but does not count as reading.
  std::vector<PageName> page_names(int layer);
  std::optional<ArenaView> arena() const;  // as Sequence::arena()
  // Returns the runs of restorable tokens of `layer` that one Gather() can copy; of a sliding layer
  // only those that it has. Waits as block_table(), but does not count as reading.
  std::vector<TokenRun> runs(int layer);
  // Ends the lease and tells the daemon what it was worth. The lease then holds nothing. The
  // destructor does the same.
  void Release(const ReleaseInfo& info = {});

 private:
  friend class Client;
  friend class Space;
  explicit Lease(Sequence pages);
  template <typename View>
  Status Copy(int layer, uint32_t begin, uint32_t count, const View& key, const View& value);
  void Read(uint32_t end) const;  // notes that the engine took tokens [0, end)
  std::span<const BlockTableEntry> Table(int layer);
  Sequence pages_;
};

struct ReserveOptions {
  std::span<const Content> content{};
  std::span<const uint32_t> turn_ends{};    // further sequence ends, in tokens; at most 4,096
  std::chrono::milliseconds deadline{200};  // of the call to the daemon
  uint32_t write_format = 0;                // index of the format that WritePacked brings
  // As BeginOptions::coarser_formats; TokenRun::format of missing() says what the daemon advises.
  uint64_t coarser_formats = 0;
  // Mask of format indexes. A block stored in one of these formats, in write_format or in one of
  // coarser_formats is not written again.
  uint64_t readable = ~uint64_t{0};
};

// Stores what the cache lacks of a sequence, from the engine's own tensors. For each run of
// missing(): write every layer, then Commit(run.end).
class Plan {
 public:
  Plan();
  ~Plan();  // abandons
  Plan(Plan&&) noexcept;
  Plan& operator=(Plan&&) noexcept;

  // If not OK, why nothing can be stored; missing() is empty then.
  const Status& status() const;
  // Runs of blocks that are not stored and that nobody else is writing, in position order. A run
  // takes at most half of the staging memory (without it, 32 MiB). TokenRun::format is the format
  // that WritePacked brings.
  std::span<const TokenRun> missing() const;
  // Takes packed bytes of tokens [begin, begin + count) of `layer`, stored as they are. Passes over
  // tokens of blocks that are not to be written or are already committed: a whole tensor may be
  // given. InvalidArgument if it leaves a gap in a block, FailedPrecondition if its blocks of
  // missing() are in several formats.
  Status WritePacked(int layer, uint32_t begin, uint32_t count, const PackedView& key,
                     const PackedView& value);
  // WritePacked() for elements, which are quantized straight into the pages, in the format that
  // each block is wanted in.
  Status WriteRows(int layer, uint32_t begin, uint32_t count, const TensorView& key,
                   const TensorView& value);
  // As those of Sequence. `tokens` must lie beyond what was committed. The Commit() that reaches it
  // stores the state.
  std::span<const uint32_t> snapshots_wanted() const;
  Status PutState(int layer, uint32_t tokens, std::span<const std::byte> state);
  // Publishes blocks up to `tokens`, which is a block border or the sequence's end, and frees their
  // memory. With sequence_end a sequence ends there. Blocks that somebody else was writing are
  // looked up again. An error only costs a later miss: InvalidArgument if a block that is missing
  // is not written in every layer, FailedPrecondition if somebody else still writes one.
  Result<CommitInfo> Commit(uint32_t tokens, const CommitOptions& options = {});
  // Gives up what was not committed.
  void Abandon();

 private:
  friend class Space;
  struct Impl;
  explicit Plan(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What a pin keeps; `pin` is 0 if none of the tokens is cached.
struct PinInfo {
  uint64_t pin = 0;
  uint32_t tokens = 0;  // pinned, from the first one on
  uint64_t bytes = 0;
};

class Space {
 public:
  Space();
  ~Space();
  Space(Space&&) noexcept;
  Space& operator=(Space&&) noexcept;

  // Looks the tokens up, leases what is cached and starts loading it. Never fails: without a cache
  // it answers 0 tokens.
  Sequence Begin(std::span<const uint32_t> tokens, const BeginOptions& options = {});
  // Begin() for engines that own their KV memory, without a sequence; ignores `announce` and
  // `write_format`. Never fails: without a cache it answers 0 tokens.
  Lease Acquire(std::span<const uint32_t> tokens, const BeginOptions& options = {});
  // Asks the daemon what the cache lacks of the tokens and announces that this worker stores it.
  // Never fails: see Plan::status().
  Plan Reserve(std::span<const uint32_t> tokens, const ReserveOptions& options = {});
  // Looks the tokens up and changes nothing.
  Result<MatchInfo> Match(std::span<const uint32_t> tokens, const BeginOptions& options = {});
  // Hints that a request with these tokens is queued: the daemon reads what of them is on SSD into
  // its RAM, after what others wait for. Returns the tokens that will be there. Nothing is held.
  Result<uint32_t> Prefetch(std::span<const uint32_t> tokens, const BeginOptions& options = {});
  // Keeps what is cached of the tokens in the daemon's RAM, loading it first, for `ttl` (0 = until
  // Unpin). The pin serves every worker and outlives this one, but not the daemon. Pinning the same
  // tokens again replaces the pin. Exhausted beyond the quota of leased and pinned bytes. Waits at
  // most options.load_deadline.
  Result<PinInfo> Pin(std::span<const uint32_t> tokens, std::chrono::milliseconds ttl = {},
                      const BeginOptions& options = {});
  // Returns the bytes that were pinned. NotFound if there is no such pin, or no longer.
  Result<uint64_t> Unpin(uint64_t pin,
                         std::chrono::milliseconds deadline = std::chrono::seconds(2));
  uint32_t block_tokens() const;
  uint64_t payload_bytes_per_token() const;  // in formats[0], without padding
  std::string id() const;                    // hex of the space id; empty until a daemon opened it

 private:
  friend class Client;
  struct Impl;
  explicit Space(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// One of the spaces in which Client::AcquireSet() looks a request up.
struct SetMember {
  Space* space = nullptr;  // of that client
  BeginOptions options{};
};

struct ClientOptions {
  // A unix socket or, for TCP, "127.0.0.1:7777", which needs a token.
  std::string address = "unix:///run/prefixd/prefixd.sock";
  // Path of your copy of the file that prefixd's --token-file names; empty = $PREFIXD_TOKEN_FILE.
  std::string token_file{};
  std::string name = "worker";
  std::string engine{};                              // and its version, for people: "vllm 0.32.0"
  std::chrono::milliseconds connect_deadline{2000};  // of the first try, in OpenSpace
  bool use_arena = true;  // read cached pages in the daemon's memory if it shares it
  // Memory that this worker quantizes into and the daemon takes pages from; the daemon may grant
  // less. 0 = none: pages are sent.
  uint64_t staging_bytes = uint64_t{64} << 20;
};

// The daemon's memory as this process maps it.
struct ArenaInfo {
  const std::byte* data = nullptr;  // arena_offset counts from here; null if not mapped
  size_t data_bytes = 0;            // of the mapping; see ArenaView for what has memory
  uint64_t staging_bytes = 0;       // granted by the daemon
  std::string why_not{};            // why it is not mapped
};

// Counts since the Client was created, over all its spaces.
struct ClientStats {
  uint64_t lookups = 0;  // Begin, Acquire
  uint64_t failed_lookups = 0;
  uint64_t requested_tokens = 0;
  uint64_t restorable_tokens = 0;  // of the requested ones, as the lookups answered
  uint64_t gathered_bytes = 0;
  uint64_t stored_tokens = 0;
  uint64_t duplicate_tokens = 0;
  uint64_t failed_commits = 0;
  uint64_t coarser_blocks = 0;  // begun in a coarser format on the daemon's advice
};

class Client {
 public:
  // Returns at once; attaches and reconnects by itself.
  explicit Client(ClientOptions options);
  ~Client();
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;

  // Opens a space. InvalidArgument if the spec is impossible ("layer 3, format 0
  // (mlx_affine/8/128/f16): keys: group_size 128 does not divide head_dim 64"). Without a daemon
  // the space opens all the same, works as a private KV cache and attaches once the daemon is
  // there. The daemon is told why a spec was refused, as by NotShared(), until a space of the same
  // model opens.
  Result<Space> OpenSpace(const SpaceSpec& spec);
  // Space::Acquire() in several spaces at once, for a draft model beside its target or the ranks of
  // a model: one round trip, and all leases begin at one length, the longest that the cache can
  // restore in every space. The longest of the members' deadlines counts. A lease may shrink alone
  // while it loads. The least that WaitAll() of any lease finally returned is good in all, except
  // with sliding or state layers, where a shorter length is worth 0 tokens. Returns the leases in
  // the order of `members`; none if a space is not of this client. Never fails: without a cache the
  // leases have 0 tokens, and match().status says why.
  std::vector<Lease> AcquireSet(std::span<const SetMember> members,
                                std::span<const uint32_t> tokens);
  // Tells the daemon that this process serves `model` with caches that are not shared, and why.
  // `prefixctl status` and `prefixctl sessions` show it for as long as the client lives; a daemon
  // that starts later is told too. An empty reason takes it back. Waits at most 200 ms, without a
  // daemon not at all. Texts are cut to 1,024 bytes. InvalidArgument without a model, Exhausted
  // beyond 16 models.
  Status NotShared(const std::string& model, const std::string& reason);
  bool attached() const;
  // Waits until attached. Returns false at the deadline.
  bool WaitAttached(std::chrono::milliseconds deadline);
  // Returns the arena of the current session, valid until the session ends. A Sequence itself keeps
  // mapped what it reads.
  ArenaInfo arena() const;
  ClientStats stats() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace prefixd
