// prefixd/client.h: the one header an inference engine includes. Standard-library types only; the
// library behind it brings its own gRPC and protobuf.
//
// Contract
//  - No call throws, aborts or outlives its deadline. Without a daemon Begin() answers 0 tokens at
//    once, attaching goes on in the background, and a cache error never fails a request.
//  - All are handles, cheap to move. Client and Space are thread-safe; a Sequence, a Lease, a Plan
//    belongs to one thread at a time (its pages load in the background) and must not outlive its
//    Client. Not before fork(): a child has nothing of them mapped, nor keeps it from being freed.
//  - An engine whose attention walks block tables takes a Sequence. One that owns its KV memory, a
//    tensor a layer, takes a Lease to copy cached tokens out and a Plan to store its own.
//  - K and V are quantized once, by Append; what comes out of the cache is attended on exactly the
//    stored bytes.
//  - Beside a daemon that shares its memory (a unix socket on this host) cached pages are read in
//    place, in a read-only mapping, and stored ones move there: block tables point into it. They
//    stay readable while the Sequence lives, also when the daemon is killed. Elsewhere pages are
//    copied.
#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

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
  std::string message{};  // the daemon's own sentence where it has one
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

// --- formats ---

enum class Dtype : uint8_t { kF32 = 1, kF16 = 2, kBf16 = 3 };
enum class Codec : uint8_t {
  kRaw = 1,
  kMlxAffine = 2,
  kQ4_0 = 3,
  kQ4_1 = 4,
  kQ5_0 = 5,
  kQ5_1 = 6,
  kQ8_0 = 7,
  kMxFp4 = 8,  // MLX's block floating point: codes and a scale byte for each group
  kMxFp8 = 9,
  kNvFp4 = 10  // without a global scale
};
// kHadamard: the engine gives K and V that it has turned by Rotate() of prefixd/attention.h, turns
// its queries the same way and the output of attention back. The library stores and attends on what
// it is given; the label makes it another space.
enum class Rotation : uint8_t { kNone = 1, kHadamard = 2 };
// The order of the same codes in a page. kRows: MLX's and ggml's own, for engines that read pages
// as such tensors. kTiled: as Attend() reads them fastest, for codes of 8 and 4 bits; what an
// engine gives and gets by Append, WritePacked and Gather is the same with any. kTransposed: raw
// elements [dim][tokens] in the page, for engines that read V so.
enum class Layout : uint8_t { kRows = 1, kTiled = 2, kTransposed = 3 };

struct TensorFormat {
  Codec codec = Codec::kRaw;
  Dtype dtype = Dtype::kF32;  // of raw elements; of MLX scales and biases
  uint8_t bits = 32;
  uint16_t group_size = 0;
  Rotation rotation = Rotation::kNone;
  Layout layout = Layout::kRows;
};
struct KvFormat {
  TensorFormat key{}, value{};
};
KvFormat Raw(Dtype dtype);
KvFormat MlxAffine(int bits, int group_size, Dtype dtype);
KvFormat MlxAffine(int key_bits, int key_group, int value_bits, int value_group, Dtype dtype);
KvFormat Ggml(Codec key, Codec value);        // of kQ4_0 ... kQ8_0
KvFormat BlockFloat(Codec key, Codec value);  // of kMxFp4, kMxFp8, kNvFp4
KvFormat Rotated(KvFormat format);            // K and V with Rotation::kHadamard
// K and V with Layout::kTiled, where they have one: MLX's 8 and 4 bits, q8_0, q4_0, q4_1. Others
// stay as they are.
KvFormat Tiled(KvFormat format);
// What does not fit together is refused by OpenSpace, by name.

// Bytes of one token's packed row of one head, whatever the page's layout: codes, then scales and
// biases (0 for raw; ggml keeps scales inside its codes). All 0 when the format is impossible for
// rows of `dim`.
struct RowBytes {
  uint32_t codes = 0, scales = 0, biases = 0;
};
RowBytes BytesOfRow(const TensorFormat& format, uint32_t dim);

// One layer of one KV block, as attention kernels walk it. 128-byte aligned, in the layout of its
// format. Of a sliding layer, blocks that no later token attends on may have no page: units is
// null.
struct BlockTableEntry {
  const std::byte* units = nullptr;
  uint64_t arena_offset = ~uint64_t{0};  // of `units` in Client::arena(); all ones: private memory
  uint32_t page_tokens = 0;              // token slots the bytes were laid out for
  uint32_t tokens = 0;                   // in use
  uint32_t format = 0;                   // index into the layer's formats
};

// --- who: the space ---

using Digest = std::array<std::byte, 32>;
// SHA-256 over the checkpoint's tensors (*.safetensors in `dir`); computed once and remembered by
// inode, size and time.
Result<Digest> DigestCheckpoint(const std::string& dir);
Result<Digest> DigestFile(const std::string& path);

struct RopeSpec {
  double theta = 0;
  std::string scaling{};
  std::vector<double> scaling_params{};
  uint32_t rotary_dim = 0;
  bool interleaved = false;
  bool key_before_rope = false;
};

// What a layer keeps of the tokens before. kFull: all their K and V. kSliding: those of the last
// `window` tokens, and of the first `sink_tokens`. kState: one state of state_bytes, which is right
// at exactly one position.
enum class LayerKind : uint8_t { kFull = 1, kSliding = 2, kState = 3 };

// What a layer keeps beside its keys. kNone: nothing. kKeyPrefix: its values are the first
// value_dim elements of its keys (MLA's latent), stored once. Their formats name the key's twice,
// and what Append, WritePacked and Gather are told of values is passed over.
enum class ValueSource : uint8_t { kStored = 1, kNone = 2, kKeyPrefix = 3 };

struct LayerSpec {
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;
  // Finest first, 1..4; of kState none. Layers may have fewer than others: where a call names
  // formats by their index, such a layer takes its last one for an index beyond.
  std::vector<KvFormat> formats{};
  LayerKind kind = LayerKind::kFull;
  uint32_t window = 0, sink_tokens = 0;  // of kSliding
  uint64_t state_bytes = 0;              // of kState
  ValueSource values = ValueSource::kStored;
  // A layer without a cache of its own, which attends on the keys and values of another one
  // (Gemma-3n, cross-layer attention): that layer's index, and nothing else is said of it. They are
  // appended and stored there, once; Wait, Gather and block_table of this layer are that one's.
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
  // With more than one rank every rank is a space of its own: `layers` are those of this rank.
  uint32_t tensor_parallel = 1;
  uint32_t pipeline_parallel = 1;
  uint32_t tensor_rank = 0;
  uint32_t pipeline_rank = 0;
  std::string salt{};
  uint32_t block_tokens = 0;        // 0 = the daemon's default, 64
  std::vector<LayerSpec> layers{};  // the library groups them
};

// --- requests ---

struct Content {  // non-token input under tokens [start, start + length)
  uint32_t start = 0, length = 0, item_offset = 0;
  Digest digest{};
};

enum class MatchKind : uint8_t { kExact = 1, kSupersequence, kPrefix, kLcp, kNone };
const char* ToString(MatchKind kind);

struct BeginOptions {
  std::span<const Content> content{};
  uint32_t max_tokens = ~uint32_t{0};  // a worker that needs logits asks for n - 1; 0 = no lookup
  std::chrono::milliseconds deadline{200};         // of the lookup
  std::chrono::milliseconds load_deadline{10000};  // of loading the pages
  uint64_t readable = ~uint64_t{0};                // mask of indexes: formats that it reads
  uint32_t write_format = 0;                       // index into formats: what Append writes
  // Blocks that end at or before head_tokens are written in head_format instead: what mlx-lm's
  // quantized_kv_start is. Stored blocks stay in the format that they have.
  uint32_t head_tokens = 0;
  uint32_t head_format = 0;
  // Formats coarser than write_format that Append may write instead in new blocks, while the daemon
  // advises it: when it gives up too much of what is asked for again. A mask of indexes; 0: never.
  // A sequence that wants it writes no packed bytes.
  uint64_t coarser_formats = 0;
  // What this worker computes by itself: a hit that takes longer to load is shortened to where it
  // pays. 0 = unknown.
  double prefill_tokens_per_s = 0;
  // How long to wait while another worker computes tokens of this request; counts into `deadline`.
  std::chrono::milliseconds wait_pending{0};
  // Tells others at once that this worker is about to compute what is missing, so that they can
  // wait for it, and spares the first Commit a question.
  bool announce = true;
  // Positions of the tokens at which a later request may go on, as far as is known: the ends of the
  // prompt and of turns. What sliding layers need there is stored, snapshots of states are wanted
  // just before, and Commit() declares an end there.
  std::span<const uint32_t> turn_ends{};
  std::string request_id{};
};

// What a lookup said; for logs and usage fields.
struct MatchInfo {
  MatchKind kind = MatchKind::kNone;
  uint32_t matched_tokens = 0;
  uint32_t restorable_tokens = 0;
  uint32_t pending_tokens = 0;  // beyond them: announced by somebody else
  bool in_place = false;        // the pages are read in the daemon's memory, nothing is copied
  uint64_t ram_bytes = 0, ssd_bytes = 0;
  uint64_t estimated_load_us = 0;
  std::string why_shorter{};  // "evicted 64", "max_tokens 1"; empty when nothing was lost
  Status status{};            // why the cache was not used, when it was not
};

// Where stored blocks stand at least when Commit returns.
enum class Durability {
  kRam,  // readable by every worker; survives kill -9 of the daemon, not a power cut
  kSsd,  // synced on SSD; takes a disk write, which commits that come together share
};

struct CommitOptions {
  bool sequence_end = false;
  Durability durability = Durability::kRam;
  std::chrono::milliseconds deadline{10000};
};
struct CommitInfo {
  uint32_t stored_tokens = 0;
  uint32_t duplicate_tokens = 0;
  // kSsd only if it was asked for and came true for all that the call stored.
  Durability durability = Durability::kRam;
};

struct ReleaseInfo {
  // Of a Lease: up to the furthest token that was gathered, seen or, with its state, restored.
  static constexpr uint32_t kAsRead = ~uint32_t{0};
  uint32_t used_tokens = kAsRead;  // that were not computed again
  std::chrono::microseconds first_token{0};
  double prefill_tokens_per_s = 0;  // what they would have cost; 0: as told before in this space
};

// Tokens [begin, end) in one format.
struct TokenRun {
  uint32_t begin = 0, end = 0;
  uint32_t format = 0;  // index into formats
};

// A tensor of one layer's K or V: [kv_heads, tokens, dim], elements of a row contiguous, strides in
// elements; 0 = dense over the tokens of the call.
struct TensorView {
  const void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  size_t head_stride = 0;
  size_t token_stride = 0;
};
// One of K or V as MLX packs it: codes [kv_heads, tokens, codes bytes], scales and biases
// [kv_heads, tokens, ...], each dense in the row, with strides in bytes. Raw and ggml formats use
// `codes` alone.
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

// One request's KV: cached pages first, then what this worker appends.
class Sequence {
 public:
  Sequence();
  ~Sequence();  // releases
  Sequence(Sequence&&) noexcept;
  Sequence& operator=(Sequence&&) noexcept;

  const MatchInfo& match() const;
  // Tokens that need not be computed; may shrink until Wait() has answered for every layer.
  uint32_t restorable_tokens() const;
  // Blocks until the cached pages of `layer` are here (or the load deadline passed). Returns the
  // usable tokens: less than restorable_tokens() before means a page turned out bad; call Restart()
  // and begin again at that length.
  uint32_t Wait(int layer);
  uint32_t WaitAll();
  // Drops everything beyond the tokens that are usable in every layer. Returns them.
  uint32_t Restart();

  // K and V of tokens [begin, begin + count) of `layer`, quantized into the sequence's own pages.
  // Tokens beyond the first Begin() were announced by PushToken(). InvalidArgument when begin
  // leaves a gap or goes back before the cached tokens.
  Status Append(int layer, uint32_t begin, uint32_t count, const TensorView& key,
                const TensorView& value);
  // The same with bytes that are packed already: stored as they are. Requires: all of blocks that
  // are written in one format.
  Status WritePacked(int layer, uint32_t begin, uint32_t count, const PackedView& key,
                     const PackedView& value);
  // Copies tokens [begin, begin + count) of `layer` out, packed as they are stored. Requires one
  // format over the range.
  Status Gather(int layer, uint32_t begin, uint32_t count, const MutablePackedView& key,
                const MutablePackedView& value) const;
  // With layers of kind kState: the positions, ascending, at which the cache wants their states.
  // Valid until the next call that looks up or commits. Others may be given too.
  std::span<const uint32_t> snapshots_wanted() const;
  // The state of `layer` after exactly `tokens` tokens: LayerSpec::state_bytes. Copied; stored by
  // the next Commit() that reaches so far, if every layer of the kind gave it. InvalidArgument for
  // another layer or size, or a position that the cache restored.
  Status PutState(int layer, uint32_t tokens, std::span<const std::byte> state);
  // What PutState() gave at restorable_tokens(), when that is not 0. Waits for the layer.
  Status GetState(int layer, std::span<std::byte> state) const;
  // One more token of the sequence (sampled, or the next turn's).
  void PushToken(uint32_t token);
  // The next turn: `tokens` follow, and what the cache has of them is leased in one round trip that
  // carries only what the lease does not cover yet. Returns the tokens that need not be computed:
  // what the sequence has, or more; then Wait() and Restart() as after Begin(). Of `options`,
  // content counts from the sequence's first token and replaces what was given before.
  uint32_t Extend(std::span<const uint32_t> tokens, const BeginOptions& options = {});

  // Blocks of `layer` in position order: cached, then own. Valid until the next call that changes
  // the sequence.
  std::span<const BlockTableEntry> block_table(int layer);

  // Stores every token appended in all layers that the cache lacks: full blocks, and the tail too
  // with sequence_end, which also declares that a sequence ends here. An error costs a later miss,
  // nothing else.
  Result<CommitInfo> Commit(const CommitOptions& options = {});
  // Commit() without waiting for it: the engine goes on appending, attending and pushing tokens
  // while a thread of the client stores what is here now. Every other call that changes the
  // sequence, and Append to a block that is being stored, waits for it first. False, and nothing is
  // begun, while an earlier one runs, when there is nothing to store, or when it cannot begin.
  bool StartCommit(const CommitOptions& options = {});
  // Waits for what StartCommit() began. What all since the last FinishCommit() stored, or the first
  // error.
  Result<CommitInfo> FinishCommit();
  // For a pause between turns: gives up the cached pages and the own ones (Commit() first: what is
  // not stored is computed again), keeps the tokens. Restart() looks them up again.
  void Park();
  // A ticket with which another process takes part in the lease: Space::Join(). NotFound without
  // one.
  Result<std::string> Share() const;
  // Ends the lease and says what it was worth; the sequence holds no pages after it. The destructor
  // does it with zeros.
  void Release(const ReleaseInfo& info = {});
  // Bytes of pages that are read in the daemon's memory, now.
  uint64_t in_place_bytes() const;
  std::chrono::microseconds load_time()
      const;  // asking for the pages to having them all; 0 before that

 private:
  friend class Space;
  friend class Lease;
  friend class SequenceSet;
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
  // Tokens that need not be computed; may shrink until WaitAll() has answered, never after.
  uint32_t restorable_tokens() const;
  // Blocks until the pages of `layer` are here. At the deadline, or that of the load, the loading
  // ends and what is not here is not used. Returns restorable_tokens().
  uint32_t Wait(int layer, std::chrono::milliseconds deadline = kLoadDeadline);
  uint32_t WaitAll(std::chrono::milliseconds deadline = kLoadDeadline);
  // Copies tokens [begin, begin + count) of `layer` out, packed as they are stored: one copy, from
  // where the pages stand. Waits for the layer. FailedPrecondition, with nothing copied, when they
  // are more than restorable_tokens() by now, or when the tokens are in several formats
  // (BeginOptions::readable chooses one).
  Status Gather(int layer, uint32_t begin, uint32_t count, const MutablePackedView& key,
                const MutablePackedView& value);
  Status GetState(int layer, std::span<std::byte> state) const;  // as Sequence::GetState()
  // Where the pages of `layer` stand, up to restorable_tokens(). Valid until the lease is released.
  // Waits; for every layer when a page turned out bad. Counts as reading them all.
  std::span<const BlockTableEntry> block_table(int layer);
  // The runs of the restorable tokens of `layer` that Gather() copies in one go; of a sliding layer
  // only those that it has. Waits as block_table(), and reads nothing.
  std::vector<TokenRun> runs(int layer);
  Result<std::string> Share() const;  // as Sequence::Share()
  // Ends the lease and says what it was worth; it holds nothing after that. The destructor does the
  // same.
  void Release(const ReleaseInfo& info = {});
  uint64_t in_place_bytes() const;
  std::chrono::microseconds load_time() const;

 private:
  friend class Space;
  friend class SequenceSet;
  explicit Lease(Sequence pages);
  void Read(uint32_t end) const;  // the engine took tokens up to there
  std::span<const BlockTableEntry> Table(int layer);
  Sequence pages_;
};

struct ReserveOptions {
  std::span<const Content> content{};
  std::span<const uint32_t> turn_ends{};    // further sequence ends: after so many tokens; <= 4,096
  std::chrono::milliseconds deadline{200};  // of asking the daemon
  uint32_t write_format = 0;                // index into formats: what WritePacked brings
  // As BeginOptions::coarser_formats; TokenRun::format says which the daemon advises.
  uint64_t coarser_formats = 0;
  // A block that is here in one of these formats, or in write_format, is not written again.
  uint64_t readable = ~uint64_t{0};
};

// What the cache lacks of a sequence, to be stored from the engine's own tensors: for each run of
// mine() write every layer, then Commit(run.end).
class Plan {
 public:
  Plan();
  ~Plan();  // abandons
  Plan(Plan&&) noexcept;
  Plan& operator=(Plan&&) noexcept;

  // Why nothing can be stored, when it cannot; mine() is empty then.
  const Status& status() const;
  // Runs of blocks that nobody has and nobody else is writing, in position order, none longer than
  // half of the staging memory holds; `format` is what WritePacked brings.
  std::span<const TokenRun> mine() const;
  // Tokens [begin, begin + count) of `layer`, stored as they are. Tokens of blocks that are not
  // mine, or are committed, are passed over: a whole tensor may be given. InvalidArgument when it
  // leaves a gap in a block.
  Status WritePacked(int layer, uint32_t begin, uint32_t count, const PackedView& key,
                     const PackedView& value);
  // As those of Sequence. A position behind what was committed; stored by the Commit() that reaches
  // it.
  std::span<const uint32_t> snapshots_wanted() const;
  Status PutState(int layer, uint32_t tokens, std::span<const std::byte> state);
  // Publishes blocks up to `tokens`, a block border or the sequence's end, and frees the memory
  // behind them. With sequence_end a sequence ends there. Blocks that somebody else was writing are
  // looked up again. An error costs a later miss, nothing else: InvalidArgument for a block that is
  // mine and not written in every layer, FailedPrecondition for one that somebody else still
  // writes.
  Result<CommitInfo> Commit(uint32_t tokens, const CommitOptions& options = {});
  // Gives up what was not committed.
  void Abandon();

 private:
  friend class Space;
  struct Impl;
  explicit Plan(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What a Pin keeps. pin 0: nothing of the tokens is cached.
struct PinInfo {
  uint64_t pin = 0;
  uint32_t tokens = 0;  // from the first on
  uint64_t bytes = 0;
};

class Space {
 public:
  Space();
  ~Space();
  Space(Space&&) noexcept;
  Space& operator=(Space&&) noexcept;

  // Looks the tokens up, leases what is there and starts loading it. Never fails: without a cache
  // it answers 0 tokens.
  Sequence Begin(std::span<const uint32_t> tokens, const BeginOptions& options = {});
  // The cached pages of another process's sequence, by its ticket: held until both let go.
  // Read-only: its tokens are not known, nothing is stored. Never fails: what is gone answers 0
  // tokens.
  Sequence Join(const std::string& ticket, const BeginOptions& options = {});
  // For engines that own their KV memory. Acquire is Begin without a sequence (announce and
  // write_format do not count): it never fails, without a cache it answers 0 tokens.
  Lease Acquire(std::span<const uint32_t> tokens, const BeginOptions& options = {});
  // Asks what is missing of the tokens and announces it. Never fails: see Plan::status().
  Plan Reserve(std::span<const uint32_t> tokens, const ReserveOptions& options = {});
  // Lookup alone: changes nothing.
  Result<MatchInfo> Match(std::span<const uint32_t> tokens, const BeginOptions& options = {});
  // A hint that a request with these tokens is queued: what of it is on SSD is read into the
  // daemon's RAM, behind what others wait for. Gives the tokens that will be there; nothing is
  // held.
  Result<uint32_t> Prefetch(std::span<const uint32_t> tokens, const BeginOptions& options = {});
  // Keeps what is cached of the tokens in the daemon's RAM, loaded first, for `ttl` (0: until it is
  // unpinned), whoever asks, also when this worker has ended; not when the daemon has. Again for
  // the same tokens replaces the pin. Exhausted beyond the quota of leased and pinned bytes. Ends
  // with the load_deadline of `options`.
  Result<PinInfo> Pin(std::span<const uint32_t> tokens, std::chrono::milliseconds ttl = {},
                      const BeginOptions& options = {});
  // Gives the bytes that were pinned. NotFound when there is no such pin (any more).
  Result<uint64_t> Unpin(uint64_t pin,
                         std::chrono::milliseconds deadline = std::chrono::seconds(2));
  uint32_t block_tokens() const;
  uint64_t payload_bytes_per_token() const;  // in formats[0], without padding
  std::string id() const;                    // hex of the space id; empty until a daemon opened it

 private:
  friend class Client;
  friend class SequenceSet;
  struct Impl;
  explicit Space(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

struct ClientOptions {
  std::string address = "unix:///run/prefixd/prefixd.sock";  // or "127.0.0.1:7777", which wants
  std::string token_file{};  // your copy of prefixd's --token-file; empty: $PREFIXD_TOKEN_FILE
  std::string name = "worker";
  std::chrono::milliseconds connect_deadline{2000};  // of OpenSpace's first try
  bool use_arena = true;  // read cached pages in the daemon's memory, where it shares it
  // Quantized into by this worker, as far as the daemon's budget goes. 0 = none: pages are sent.
  uint64_t staging_bytes = uint64_t{64} << 20;
};

// The daemon's memory as this process maps it.
struct ArenaInfo {
  const std::byte* data = nullptr;  // null: not mapped; arena_offset counts from here
  size_t data_bytes = 0;            // a GPU engine registers it once, read-only
  uint64_t staging_bytes = 0;       // granted
  std::string why_not{};            // why it is not mapped
};

// Counted since the Client began, over all its spaces.
struct ClientStats {
  uint64_t lookups = 0;  // Begin, Extend, Acquire
  uint64_t failed_lookups = 0;
  uint64_t requested_tokens = 0;
  uint64_t restorable_tokens = 0;  // of them, as the lookups answered
  uint64_t gathered_bytes = 0;
  uint64_t stored_tokens = 0;
  uint64_t duplicate_tokens = 0;
  uint64_t failed_commits = 0;
  uint64_t coarser_blocks = 0;  // begun in a coarser format, as the daemon advised
};

class Client {
 public:
  // Returns at once; attaches and reconnects by itself.
  explicit Client(ClientOptions options);
  ~Client();
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;

  // InvalidArgument when the spec is impossible ("group_size 48 does not divide head_dim 128").
  // Without a daemon the space opens all the same, works as a private KV cache, and attaches once
  // the daemon is there. Why a spec is refused the daemon is told too, as by NotShared(), until
  // another of the same model opens.
  Result<Space> OpenSpace(const SpaceSpec& spec);
  // This process serves `model` with caches that are not shared, and why: `prefixctl status` and
  // `prefixctl sessions` show it for as long as the client lives, also of a daemon that comes
  // later. An empty reason takes it back. Waits at most 200 ms, without a daemon not at all. Texts
  // are cut to 1,024 bytes. InvalidArgument without a model, Exhausted beyond 16 models.
  Status NotShared(const std::string& model, const std::string& reason);
  bool attached() const;
  // Waits until attached. False at the deadline.
  bool WaitAttached(std::chrono::milliseconds deadline);
  // Of the present session. Valid until it ends; a Sequence keeps what it reads for itself.
  ArenaInfo arena() const;
  ClientStats stats() const;

 private:
  friend class SequenceSet;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace prefixd
