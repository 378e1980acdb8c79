#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "errors.h"
#include "formats.h"

namespace prefixd::cuda {
namespace {

constexpr uint32_t kMostQueryRows = 2048;
constexpr uint32_t kMostDecodeRows = 8;  // that the prefill kernel leaves to others
constexpr uint32_t kMostGroup = 16, kMostLatentGroup = 128;
constexpr uint32_t kUsualPageTokens = 64;
constexpr uint64_t kLittleWork =
    64;  // pages of a warp, below which one block of a processor is best

template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("attend: ", parts...));
}

// Appends an array to a list's bytes at an aligned offset, which it returns.
template <typename T>
size_t Append(const std::vector<T>& from, std::vector<std::byte>* to) {
  const size_t at = (to->size() + 15) / 16 * 16;
  to->resize(at + from.size() * sizeof(T));
  if (!from.empty()) std::memcpy(to->data() + at, from.data(), from.size() * sizeof(T));
  return at;
}

}  // namespace

absl::StatusOr<WorkShape> CheckShape(const prefixd_cuda_attention_options& options) {
  WorkShape shape;
  shape.query_rows = std::max(1u, options.query_rows);
  if (shape.query_rows > kMostQueryRows) {
    return Refuse("query_rows is ", options.query_rows, ", must be 1 to ", kMostQueryRows);
  }
  shape.kv_heads = options.kv_heads;
  PREFIXD_ASSIGN_OR_RETURN(shape.latent, IsLatent(options.values));
  PREFIXD_ASSIGN_OR_RETURN(shape.formats, GeometryOf(options.formats, options.format_count,
                                                     {.kv_heads = options.kv_heads,
                                                      .key_dim = options.key_dim,
                                                      .value_dim = options.value_dim,
                                                      .latent = shape.latent}));
  const uint32_t most_values = std::min(options.key_dim, kMaxLatentValueDim);
  if (shape.latent && (options.value_dim == 0 || options.value_dim % kOctet != 0 ||
                       options.value_dim > most_values)) {
    return Refuse("value_dim is ", options.value_dim, ", must be a multiple of 8, at most ",
                  most_values, ": the values are the keys' first elements");
  }
  const uint32_t most_group = shape.latent ? kMostLatentGroup : kMostGroup;
  if (options.query_heads == 0 || options.query_heads % options.kv_heads != 0 ||
      options.query_heads / options.kv_heads > most_group) {
    return Refuse("query_heads ", options.query_heads, " is no multiple of kv_heads ",
                  options.kv_heads, ", or more than ", most_group, " times as many");
  }
  shape.group = options.query_heads / options.kv_heads;
  if (!std::isfinite(options.scale) || options.scale == 0) {
    return Refuse("scale must be that of q.k, mostly 1 / sqrt(key_dim)");
  }
  if (!std::isfinite(options.soft_cap) || options.soft_cap < 0) {
    return Refuse("soft_cap is ", options.soft_cap, ", must be 0 for none, or positive");
  }
  shape.window = options.window;
  shape.sink_tokens = options.sink_tokens;
  shape.kernel_of_format.assign(shape.formats.size(), 0);
  return shape;
}

absl::StatusOr<uint32_t> QuickRows(const prefixd_cuda_facts& facts,
                                   const prefixd_cuda_attention_options& options) {
  PREFIXD_ASSIGN_OR_RETURN(const WorkShape shape, CheckShape(options));
  const bool quick = options.precise == 0 && !shape.latent && HasPrefill(facts.major, facts.minor);
  return quick ? kMostQueryRows : kMostDecodeRows;
}

absl::StatusOr<std::unique_ptr<Attention>> Attention::New(
    Context* context, const prefixd_cuda_attention_options& options) {
  PREFIXD_ASSIGN_OR_RETURN(WorkShape shape, CheckShape(options));
  auto attention = std::make_unique<Attention>(context, options, std::move(shape));
  PREFIXD_RETURN_IF_ERROR(context->Enter());
  PREFIXD_RETURN_IF_ERROR(
      FromCuda(PrepareGeneric(attention->shape_.latent), "attend: generic kernel"));
  const prefixd_cuda_facts& facts = context->facts();
  if (options.precise == 0 && !attention->shape_.latent &&
      attention->shape_.query_rows > kMostDecodeRows && HasPrefill(facts.major, facts.minor)) {
    PREFIXD_RETURN_IF_ERROR(attention->TakePrefill());
  } else {
    PREFIXD_RETURN_IF_ERROR(attention->PlanLaunches(kUsualPageTokens));
  }
  return attention;
}

absl::Status Attention::TakePrefill() {
  prefill_dim_ = PrefillDim(options_.key_dim, options_.value_dim);
  PREFIXD_RETURN_IF_ERROR(FromCuda(PreparePrefill(), "attend: prefill kernel"));
  PREFIXD_RETURN_IF_ERROR(Grow(&unfit_, sizeof(uint32_t), true, nullptr));
  arguments_.unfit = reinterpret_cast<uint32_t*>(unfit_.memory);
  prefill_ = true;
  fast_formats_.clear();
  shape_.kernel_of_format.assign(shape_.formats.size(), 0);
  prefixd_cuda_attention_options exact = options_;
  exact.precise = 1;
  exact_ = std::make_unique<Attention>(context_, exact, shape_);
  exact_->arguments_.unfit = arguments_.unfit;
  shape_.segment_columns = kPrefillColumns;
  return absl::OkStatus();
}

Attention::Attention(Context* context, const prefixd_cuda_attention_options& options,
                     WorkShape shape)
    : context_(context), options_(options), shape_(std::move(shape)) {
  for (uint32_t i = 0; i < shape_.formats.size(); ++i) {
    if (options.precise != 0 || !HasFast(shape_.formats[i])) continue;
    fast_formats_.push_back(i);
    shape_.kernel_of_format[i] = static_cast<uint8_t>(fast_formats_.size());
  }
  arguments_.kv_heads = shape_.kv_heads;
  arguments_.group = shape_.group;
  arguments_.query_rows = shape_.query_rows;
  arguments_.key_dim = options.key_dim;
  arguments_.value_dim = options.value_dim;
  arguments_.latent = shape_.latent;
  arguments_.scale = options.scale;
  arguments_.soft_cap = options.soft_cap;
  arguments_.window = options.window;
  arguments_.sink_tokens = options.sink_tokens;
  std::copy(shape_.formats.begin(), shape_.formats.end(), arguments_.formats);
}

Attention::~Attention() {
  if (!context_->Enter().ok()) return;
  for (const Buffer* buffer : {&lists_, &sums_, &weights_, &arrived_, &unfit_}) {
    if (buffer->memory != nullptr) cudaFree(buffer->memory);  // waits for the GPU
  }
  cudaGetLastError();
}

// Stages are as large as the largest page that was seen.
absl::Status Attention::PlanLaunches(uint32_t most_page_tokens) {
  planned_page_tokens_ = most_page_tokens;
  two_.clear();
  one_.clear();
  for (const uint32_t format : fast_formats_) {
    const PairGeometry& pair = shape_.formats[format];
    const uint32_t columns = shape_.query_rows * shape_.group;
    const SharedMemory& memory = context_->shared_memory();
    two_.push_back(PlanFast(pair, most_page_tokens, columns, memory, 2));
    one_.push_back(PlanFast(pair, most_page_tokens, columns, memory, 1));
    if (one_.back().warps == 0) {  // the pages are too large: the generic kernel has them
      shape_.kernel_of_format[format] = 0;
      continue;
    }
    PREFIXD_RETURN_IF_ERROR(
        FromCuda(PrepareFast(pair, std::max(one_.back().shared_bytes, two_.back().shared_bytes)),
                 "attend: fast kernel"));
  }
  return absl::OkStatus();
}

// Decides by the pages that a warp would have, as if every kernel had them all.
void Attention::ChooseLaunches(const prefixd_cuda_sequence* sequences, uint32_t count) {
  uint64_t pages = 0;
  for (uint32_t i = 0; sequences != nullptr && i < count; ++i) pages += sequences[i].block_count;
  const uint64_t columns = uint64_t{shape_.query_rows} * shape_.group;
  const uint64_t work = pages * shape_.kv_heads * ((columns + kColumns - 1) / kColumns);
  const uint32_t processors = context_->facts().processors;
  const uint32_t blocks_each = shape_.latent ? kLatentBlocksEach : kGenericBlocksEach;
  grids_ = {{.blocks = processors * (prefill_ ? 1 : blocks_each), .pages_at_once = 1}};
  launches_.clear();
  for (size_t i = 0; i < one_.size(); ++i) {
    const uint64_t warps = uint64_t{processors} * std::max(1u, one_[i].warps);
    launches_.push_back(two_[i].warps == 0 || work < warps * kLittleWork ? one_[i] : two_[i]);
    grids_.push_back({.blocks = std::max(1u, processors * launches_[i].blocks_each),
                      .pages_at_once = std::max(1u, launches_[i].warps)});
  }
}

absl::Status Attention::Grow(Buffer* buffer, size_t bytes, bool zero, cudaStream_t stream) {
  if (bytes <= buffer->bytes) return absl::OkStatus();
  if (buffer->memory != nullptr) {
    PREFIXD_RETURN_IF_ERROR(FromCuda(cudaFree(buffer->memory), "attend"));
    *buffer = {};
  }
  const size_t more = bytes + bytes / 2;
  void* memory = nullptr;
  PREFIXD_RETURN_IF_ERROR(FromCuda(cudaMalloc(&memory, more), "attend: device memory"));
  *buffer = {.memory = static_cast<std::byte*>(memory), .bytes = more};
  if (!zero) return absl::OkStatus();
  return FromCuda(cudaMemsetAsync(memory, 0, more, stream), "attend");
}

absl::Status Attention::Set(const prefixd_cuda_sequence* sequences, uint32_t count,
                            cudaStream_t stream) {
  sequences_ = 0;
  PREFIXD_RETURN_IF_ERROR(context_->Enter());
  if (exact_ != nullptr) PREFIXD_RETURN_IF_ERROR(exact_->Set(sequences, count, stream));
  for (uint32_t i = 0; sequences != nullptr && i < count; ++i) {
    uint32_t most = planned_page_tokens_;
    for (size_t b = 0; sequences[i].blocks != nullptr && b < sequences[i].block_count; ++b) {
      most = std::max(most, std::min(1024u, sequences[i].blocks[b].page_tokens));
    }
    if (most > planned_page_tokens_) PREFIXD_RETURN_IF_ERROR(PlanLaunches(most));
  }
  ChooseLaunches(sequences, count);
  PREFIXD_ASSIGN_OR_RETURN(WorkList list, MakeWorkList(shape_, grids_, sequences, count));
  for (size_t i = 0; i < list.pages.size(); ++i) {
    const DevicePage& page = list.pages[i];
    if (context_->InArenas(page.units, page.layer_bytes) == Context::Reach::kNotPinned) {
      return absl::FailedPreconditionError(
          absl::StrCat("attend: page ", i, " is in the arena and not pinned"));
    }
  }
  TileList tiles;
  if (prefill_) {
    tiles = GiveTiles([&](const DevicePage& page) { return HasTiles(page); }, &list.pages);
  }
  tile_bytes_ = size_t{tiles.tiles} * shape_.kv_heads * 2 * TileImageBytes(prefill_dim_);
  PREFIXD_RETURN_IF_ERROR(Fill(list, tiles.pages, stream));
  sequences_ = count;
  return absl::OkStatus();
}

bool Attention::HasTiles(const DevicePage& page) const {
  const bool in_arena = context_->InArenas(page.units, page.layer_bytes) == Context::Reach::kPinned;
  return NeedsTiles(shape_.formats[page.format], page.page_tokens, prefill_dim_, in_arena);
}

absl::Status Attention::Fill(const WorkList& list, const std::vector<uint32_t>& tile_pages,
                             cudaStream_t stream) {
  std::vector<std::byte> bytes;
  const size_t pages = Append(list.pages, &bytes), segments = Append(list.segments, &bytes);
  const size_t tiles = Append(tile_pages, &bytes);
  std::vector<std::pair<size_t, size_t>> shares;
  for (const WorkList::Share& share : list.shares) {
    const size_t items = Append(share.items, &bytes);
    shares.emplace_back(items, Append(share.firsts, &bytes));
  }
  const size_t columns = size_t{list.parts} * shape_.segment_columns;
  const size_t channels = prefill_ ? prefill_dim_ : options_.value_dim;
  PREFIXD_RETURN_IF_ERROR(Grow(&lists_, bytes.size(), false, stream));
  PREFIXD_RETURN_IF_ERROR(Grow(&sums_, columns * channels * sizeof(float), false, stream));
  PREFIXD_RETURN_IF_ERROR(Grow(&weights_, columns * sizeof(float2), false, stream));
  PREFIXD_RETURN_IF_ERROR(Grow(&arrived_, list.segments.size() * sizeof(uint32_t), true, stream));
  PREFIXD_ASSIGN_OR_RETURN(Chunk * chunk, context_->tables().Take(bytes.size()));
  std::memcpy(chunk->host, bytes.data(), bytes.size());
  const absl::Status copied = FromCuda(
      cudaMemcpyAsync(lists_.memory, chunk->host, bytes.size(), cudaMemcpyHostToDevice, stream),
      "attend: work list");
  PREFIXD_RETURN_IF_ERROR(context_->tables().Give(chunk, stream));
  PREFIXD_RETURN_IF_ERROR(copied);
  arguments_.pages = reinterpret_cast<const DevicePage*>(lists_.memory + pages);
  arguments_.segments = reinterpret_cast<const Segment*>(lists_.memory + segments);
  arguments_.tile_pages = reinterpret_cast<const uint32_t*>(lists_.memory + tiles);
  arguments_.tile_page_count = static_cast<uint32_t>(tile_pages.size());
  arguments_.part_sums = reinterpret_cast<float*>(sums_.memory);
  arguments_.part_weights = reinterpret_cast<float2*>(weights_.memory);
  arguments_.arrived = reinterpret_cast<uint32_t*>(arrived_.memory);
  shares_.clear();
  for (size_t i = 0; i < shares.size(); ++i) {
    const bool any = !list.shares[i].items.empty();
    shares_.push_back(
        {.items = reinterpret_cast<const WorkItem*>(lists_.memory + shares[i].first),
         .firsts = reinterpret_cast<const uint32_t*>(lists_.memory + shares[i].second),
         .blocks = any ? grids_[i].blocks : 0});
  }
  return absl::OkStatus();
}

absl::StatusOr<HeadsPlace> Attention::HeadsOf(const prefixd_cuda_heads& heads, uint32_t dim,
                                              const char* what) const {
  if (heads.data == nullptr || reinterpret_cast<uintptr_t>(heads.data) % 16 != 0) {
    return Refuse(what, " are NULL or not 16-byte aligned");
  }
  if (heads.dtype < kF32 || heads.dtype > kBf16) {
    return Refuse(what, ": dtype is ", heads.dtype, ", must be f32, f16 or bf16");
  }
  HeadsPlace place{.data = heads.data, .dtype = heads.dtype};
  place.head_stride = heads.head_stride != 0 ? heads.head_stride : dim;
  place.row_stride =
      heads.row_stride != 0 ? heads.row_stride : place.head_stride * options_.query_heads;
  place.sequence_stride = heads.sequence_stride != 0
                              ? heads.sequence_stride
                              : place.row_stride * static_cast<int64_t>(shape_.query_rows);
  const int64_t in_16_bytes = heads.dtype == kF32 ? 4 : 8;
  for (const int64_t stride : {place.head_stride, place.row_stride, place.sequence_stride}) {
    if (stride % in_16_bytes != 0) {
      return Refuse(what, ": stride ", stride, " is no multiple of 16 bytes");
    }
  }
  return place;
}

absl::Status Attention::Attend(uint32_t layer, const prefixd_cuda_heads& queries,
                               const prefixd_cuda_heads& results, const float* sink_logits,
                               cudaStream_t stream) const {
  if (sequences_ == 0) {
    return absl::FailedPreconditionError("attend: no sequences are set, or setting them failed");
  }
  AttendArguments arguments = arguments_;
  PREFIXD_ASSIGN_OR_RETURN(arguments.queries, HeadsOf(queries, options_.key_dim, "queries"));
  PREFIXD_ASSIGN_OR_RETURN(arguments.results, HeadsOf(results, options_.value_dim, "results"));
  arguments.sink_logits = sink_logits;
  arguments.layer = layer;
  PREFIXD_RETURN_IF_ERROR(context_->Enter());
  if (!prefill_) return QueueKernels(arguments, stream);
  arguments.work = shares_[0];
  PREFIXD_RETURN_IF_ERROR(QueueManyRows(&arguments, stream));
  return exact_->Attend(layer, queries, results, sink_logits, stream);
}

// Tiles have memory for the time of the call. Where there is none, the call is left to the kernel
// for every format.
absl::Status Attention::QueueManyRows(AttendArguments* arguments, cudaStream_t stream) const {
  void* tiles = nullptr;
  cudaError_t error = cudaSuccess;
  if (tile_bytes_ > 0) error = cudaMallocAsync(&tiles, tile_bytes_, stream);
  const bool has_no_memory = error == cudaErrorMemoryAllocation;
  if (has_no_memory) {
    cudaGetLastError();
  } else {
    PREFIXD_RETURN_IF_ERROR(FromCuda(error, "attend: memory for tiles"));
  }
  PREFIXD_RETURN_IF_ERROR(
      FromCuda(cudaMemsetAsync(unfit_.memory, has_no_memory ? 1 : 0, sizeof(uint32_t), stream),
               "attend: prefill"));
  if (has_no_memory) return absl::OkStatus();
  arguments->tiles = static_cast<uint8_t*>(tiles);
  error = QueueTiles(*arguments, stream);
  if (error == cudaSuccess) error = QueuePrefill(*arguments, stream);
  if (tiles != nullptr) {
    const cudaError_t freed = cudaFreeAsync(tiles, stream);
    if (error == cudaSuccess) error = freed;
  }
  return FromCuda(error, "attend: prefill");
}

absl::Status Attention::QueueKernels(const AttendArguments& given, cudaStream_t stream) const {
  AttendArguments arguments = given;
  // One kernel alone may overlap with the one before it, from Hopper on: two of one call share
  // parts.
  const size_t kernels = static_cast<size_t>(std::count_if(
      shares_.begin(), shares_.end(), [](const WorkShare& share) { return share.blocks > 0; }));
  arguments.early = options_.early != 0 && kernels == 1 && context_->facts().major >= 9;
  for (size_t kernel = 0; kernel < shares_.size(); ++kernel) {
    if (shares_[kernel].blocks == 0) continue;
    arguments.work = shares_[kernel];
    const cudaError_t error = kernel == 0 ? QueueGeneric(arguments, stream)
                                          : QueueFast(arguments, fast_formats_[kernel - 1],
                                                      launches_[kernel - 1], stream);
    PREFIXD_RETURN_IF_ERROR(FromCuda(error, "attend"));
  }
  return absl::OkStatus();
}

}  // namespace prefixd::cuda
