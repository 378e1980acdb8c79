#include "load.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "errors.h"
#include "formats.h"

namespace prefixd::cuda {
namespace {

constexpr size_t kScratchAlignment = 256;

template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("load: ", parts...));
}

absl::Status CheckBlocks(const LoadLayer& layer) {
  if (layer.blocks == nullptr && layer.block_count > 0) return Refuse("no blocks given");
  for (size_t i = 0; i < layer.block_count; ++i) {
    const prefixd_block& block = layer.blocks[i];
    if (block.page_tokens == 0 || block.tokens > block.page_tokens || block.page_tokens > 1024) {
      return Refuse("block ", i, " has ", block.tokens, " tokens in ", block.page_tokens, " slots");
    }
    if (block.format >= layer.formats.size()) {
      return Refuse("block ", i, " has format ", block.format, ", ", layer.formats.size(),
                    " formats are given");
    }
    if (reinterpret_cast<uintptr_t>(block.units) % 16 != 0) {
      return Refuse("the units of block ", i, " are not 16-byte aligned");
    }
  }
  return absl::OkStatus();
}

// An event of what is queued on the stream now.
absl::StatusOr<Fence> RecordFence(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  PREFIXD_RETURN_IF_ERROR(FromCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                   "load: event of device pages"));
  Fence fence(event, [](void* it) { cudaEventDestroy(static_cast<cudaEvent_t>(it)); });
  PREFIXD_RETURN_IF_ERROR(FromCuda(cudaEventRecord(event, stream), "load: event of device pages"));
  return fence;
}

uint64_t EndOf(const prefixd_cuda_load_options& options) {
  return options.count == 0 ? std::numeric_limits<uint64_t>::max()
                            : uint64_t{options.begin} + options.count;
}

// Copies with a few threads, which take pieces one after the other.
struct HostCopy {
  const void* from = nullptr;
  std::byte* to = nullptr;
  size_t bytes = 0;
};
void CopyAll(const std::vector<HostCopy>& copies, uint32_t threads) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < copies.size(); i = next++) {
      std::memcpy(copies[i].to, copies[i].from, copies[i].bytes);
    }
  };
  std::vector<std::thread> others;
  for (uint32_t t = 1; t < std::min<size_t>(threads, copies.size()); ++t) {
    try {
      others.emplace_back(work);
    } catch (const std::system_error&) {
      break;  // fewer threads do it too
    }
  }
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace

absl::StatusOr<LoadLayer> CheckLayer(const prefixd_cuda_load_layer& given,
                                     const prefixd_cuda_load_options& options) {
  LoadLayer layer{.blocks = given.blocks,
                  .block_count = given.block_count,
                  .kv_heads = given.kv_heads,
                  .pages = given.pages,
                  .names = given.names,
                  .resident = given.resident};
  PREFIXD_ASSIGN_OR_RETURN(const bool latent, IsLatent(given.values));
  PREFIXD_ASSIGN_OR_RETURN(layer.formats, GeometryOf(given.formats, given.format_count,
                                                     {.kv_heads = given.kv_heads,
                                                      .key_dim = given.key_dim,
                                                      .value_dim = given.value_dim,
                                                      .latent = latent}));
  PREFIXD_RETURN_IF_ERROR(CheckBlocks(layer));
  if (!layer.expands()) {
    if (given.key != nullptr || given.value != nullptr) {
      return Refuse("both pages and tensors are given");
    }
    for (size_t i = 0; i < given.block_count && given.pages != nullptr; ++i) {
      if (given.blocks[i].units == nullptr) continue;
      if (given.pages[i] == nullptr || reinterpret_cast<uintptr_t>(given.pages[i]) % 128 != 0) {
        return Refuse("page ", i, " is NULL or not 128-byte aligned");
      }
    }
    return layer;
  }
  PREFIXD_ASSIGN_OR_RETURN(layer.key, PlaceOf(given.key, given.kv_heads, given.key_dim, "key"));
  if (latent && given.value != nullptr) return Refuse("value: the pages hold keys alone");
  if (!latent) {
    PREFIXD_ASSIGN_OR_RETURN(layer.value,
                             PlaceOf(given.value, given.kv_heads, given.value_dim, "value"));
  }
  uint64_t tokens = 0;
  for (size_t i = 0; i < given.block_count; ++i) tokens += given.blocks[i].tokens;
  if (tokens > std::numeric_limits<uint32_t>::max()) return Refuse("more than 2^32 tokens");
  const uint64_t end = std::min(EndOf(options), tokens);
  if (options.count != 0 && EndOf(options) > tokens) {
    return Refuse("the blocks hold ", tokens, " tokens, up to ", EndOf(options), " are asked for");
  }
  PREFIXD_RETURN_IF_ERROR(CheckTable(layer.key, options.table, options.table_count, end));
  PREFIXD_RETURN_IF_ERROR(CheckTable(layer.value, options.table, options.table_count, end));
  return layer;
}

std::vector<WantedBlock> WantedBlocks(const prefixd_block* blocks, size_t count, uint64_t begin,
                                      uint64_t end) {
  std::vector<WantedBlock> wanted;
  uint64_t position = 0;
  for (size_t i = 0; i < count && position < end; ++i) {
    const uint64_t first = std::max(begin, position);
    const uint64_t last = std::min(end, position + blocks[i].tokens);
    if (first < last && blocks[i].units != nullptr) {
      wanted.push_back({.block = i,
                        .first_slot = static_cast<uint32_t>(first - position),
                        .count = static_cast<uint32_t>(last - first),
                        .token = static_cast<uint32_t>(first)});
    }
    position += blocks[i].tokens;
  }
  return wanted;
}

absl::StatusOr<std::unique_ptr<Load>> Load::Begin(Context* context,
                                                  const prefixd_cuda_load_options& options) {
  if (options.layers == nullptr || options.layer_count == 0) return Refuse("no layers given");
  std::vector<LoadLayer> layers;
  const auto* at = reinterpret_cast<const std::byte*>(options.layers);
  for (uint32_t i = 0; i < options.layer_count; ++i, at += options.layers->size) {
    prefixd_cuda_load_layer given;
    if (!Take(reinterpret_cast<const prefixd_cuda_load_layer*>(at), &given)) {
      return absl::InvalidArgumentError(LastError());
    }
    auto layer = CheckLayer(given, options);
    if (!layer.ok()) return Refuse("layer ", i, ": ", layer.status().message());
    layers.push_back(*std::move(layer));
  }
  auto load = std::make_unique<Load>(context);
  PREFIXD_RETURN_IF_ERROR(load->Queue(options, std::move(layers)));
  return load;
}

Load::~Load() {
  if (context_->Enter().ok() && stream_ != nullptr) {
    cudaStreamSynchronize(stream_);  // an expansion may wait for it
    if (expand_stream_ != nullptr) {
      cudaStreamSynchronize(expand_stream_);
      context_->GiveExpandStream(expand_stream_);
    }
    if (scratch_ != nullptr) cudaFreeAsync(scratch_, stream_);
    if (gathered_ != nullptr) cudaEventDestroy(gathered_);
  }
  if (table_ != nullptr) context_->tables().GiveUnused(table_);
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
  ReleasePages();
  cudaGetLastError();
}

// What this load queued is done.
void Load::ReleasePages() {
  if (held_.empty()) return;
  tier_->pages.Settle(filled_);
  if (readers_.empty()) return tier_->pages.Release(held_);
  tier_->pages.ReleaseWhen(std::move(held_), [readers = std::move(readers_)] {
    return std::all_of(readers.begin(), readers.end(), [](const Fence& event) {
      const bool reads = cudaEventQuery(static_cast<cudaEvent_t>(event.get())) == cudaErrorNotReady;
      cudaGetLastError();
      return !reads;
    });
  });
}

absl::Status Load::Queue(const prefixd_cuda_load_options& options, std::vector<LoadLayer> layers) {
  PREFIXD_RETURN_IF_ERROR(context_->Enter());
  stream_ = options.stream == nullptr ? context_->load_stream()
                                      : static_cast<cudaStream_t>(options.stream);
  for (size_t i = 0; i < layers.size(); ++i) {
    cudaEvent_t event = nullptr;
    PREFIXD_RETURN_IF_ERROR(
        FromCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "load: event"));
    events_.push_back(event);
  }
  if (options.after != nullptr) {
    PREFIXD_RETURN_IF_ERROR(FromCuda(
        cudaStreamWaitEvent(stream_, static_cast<cudaEvent_t>(options.after), 0), "load: after"));
  }
  if (options.table != nullptr && options.table_count > 0) {
    PREFIXD_ASSIGN_OR_RETURN(
        table_,
        context_->tables().Upload(options.table, options.table_count * sizeof(int32_t), stream_));
  }
  for (const LoadLayer& layer : layers) {
    PREFIXD_RETURN_IF_ERROR(QueueLayer(layer, options));
  }
  if (last_expansion_ == nullptr) return absl::OkStatus();
  return FromCuda(cudaStreamWaitEvent(stream_, last_expansion_, 0), "load: expansions");
}

absl::Status Load::RecordLayer(cudaStream_t stream) {
  return FromCuda(cudaEventRecord(events_[recorded_++], stream), "load: event");
}

absl::Status Load::QueueLayer(const LoadLayer& layer, const prefixd_cuda_load_options& options) {
  const bool expands = layer.expands();
  if (layer.resident != nullptr) std::fill_n(layer.resident, layer.block_count, nullptr);
  const std::vector<WantedBlock> wanted =
      WantedBlocks(layer.blocks, layer.block_count, expands ? options.begin : 0,
                   expands ? EndOf(options) : std::numeric_limits<uint64_t>::max());
  if (wanted.empty()) return RecordLayer(stream_);
  std::vector<Source> sources;  // over PCIe, or from other device memory
  std::vector<Source> copies;   // from device pages
  std::vector<BlockPart> parts;
  size_t scratch_bytes = 0;
  const size_t first_filled = filled_.size();
  Context::DeviceRange known;
  for (const WantedBlock& it : wanted) {
    const prefixd_block& block = layer.blocks[it.block];
    const uint32_t bytes =
        PlacesOf(layer.formats[block.format], layer.kv_heads, block.page_tokens).bytes;
    const Context::Reach reach = context_->ReachOf(block.units, bytes, &known);
    parts.push_back({.units = static_cast<const uint8_t*>(block.units),
                     .page_tokens = block.page_tokens,
                     .first_slot = it.first_slot,
                     .count = it.count,
                     .token = it.token,
                     .format = block.format});
    if (expands && reach == Context::Reach::kDevice) continue;  // expanded from where it lies
    Source source{.from = block.units,
                  .to = layer.pages == nullptr ? nullptr : layer.pages[it.block],
                  .bytes = bytes,
                  .part = parts.size() - 1,
                  .reach = reach};
    PREFIXD_ASSIGN_OR_RETURN(const std::byte* kept, KeptAt(layer, source, it.block, &sources));
    if (layer.resident != nullptr) {
      const void* stays =
          reach == Context::Reach::kDevice && layer.pages == nullptr ? block.units : source.to;
      layer.resident[it.block] = kept != nullptr ? kept : stays;
    }
    if (kept != nullptr) {
      parts.back().units = reinterpret_cast<const uint8_t*>(kept);
      if (expands || layer.resident != nullptr) continue;
      source.from = kept;
      source.reach = Context::Reach::kDevice;
      copies.push_back(source);
      continue;
    }
    if (!expands && source.to == nullptr) continue;
    sources.push_back(source);
    if (expands) scratch_bytes += bytes;
  }
  PREFIXD_ASSIGN_OR_RETURN(std::byte * scratch, Scratch(scratch_bytes));
  for (Source& source : sources) {
    if (source.to != nullptr) continue;
    source.to = scratch;
    parts[source.part].units = reinterpret_cast<const uint8_t*>(scratch);
    scratch += source.bytes;
  }
  PREFIXD_RETURN_IF_ERROR(Gather(sources));
  PREFIXD_RETURN_IF_ERROR(Publish(first_filled));
  if (expands) return Expand(layer, parts);
  PREFIXD_RETURN_IF_ERROR(Gather(copies));
  return RecordLayer(stream_);
}

absl::StatusOr<const std::byte*> Load::KeptAt(const LoadLayer& layer, const Source& source,
                                              size_t block, std::vector<Source>* sources) {
  if (tier_ == nullptr || layer.names == nullptr || source.reach == Context::Reach::kDevice) {
    return nullptr;
  }
  const PageName name{
      .high = layer.names[block].high, .low = layer.names[block].low, .bytes = source.bytes};
  if (name.high == 0 && name.low == 0) return nullptr;
  const DevicePages::Found found = tier_->pages.Find(name);
  if (found.page != nullptr) {
    held_.push_back(found.page);
    counts_.kept_bytes += source.bytes;
    if (found.fence != nullptr && found.fence != last_fence_) {
      last_fence_ = found.fence;
      PREFIXD_RETURN_IF_ERROR(
          FromCuda(cudaStreamWaitEvent(stream_, static_cast<cudaEvent_t>(found.fence.get()), 0),
                   "load: device page"));
    }
    return tier_->memory + found.page->offset;
  }
  KeptPage* const page = tier_->pages.Reserve(name);
  if (page == nullptr) return nullptr;
  held_.push_back(page);
  filled_.push_back(page);
  Source fill = source;
  fill.to = tier_->memory + page->offset;
  sources->push_back(fill);
  return tier_->memory + page->offset;
}

// Lets others find the pages from `first` on of those that this load brings: they are queued.
absl::Status Load::Publish(size_t first) {
  if (first == filled_.size()) return absl::OkStatus();
  PREFIXD_ASSIGN_OR_RETURN(const Fence fence, RecordFence(stream_));
  for (size_t i = first; i < filled_.size(); ++i) tier_->pages.Publish(filled_[i], fence);
  return absl::OkStatus();
}

absl::Status Load::Expand(const LoadLayer& layer, const std::vector<BlockPart>& parts) {
  if (expand_stream_ == nullptr) {
    PREFIXD_ASSIGN_OR_RETURN(expand_stream_, context_->TakeExpandStream());
    PREFIXD_RETURN_IF_ERROR(
        FromCuda(cudaEventCreateWithFlags(&gathered_, cudaEventDisableTiming), "load: event"));
  }
  PREFIXD_RETURN_IF_ERROR(FromCuda(cudaEventRecord(gathered_, stream_), "load: gathered"));
  PREFIXD_RETURN_IF_ERROR(
      FromCuda(cudaStreamWaitEvent(expand_stream_, gathered_, 0), "load: gathered"));
  PREFIXD_ASSIGN_OR_RETURN(
      Chunk * chunk,
      context_->tables().Upload(parts.data(), parts.size() * sizeof(BlockPart), expand_stream_));
  ExpandArguments arguments{
      .key = layer.key,
      .value = layer.value,
      .table = table_ == nullptr ? nullptr : reinterpret_cast<const int32_t*>(table_->device),
      .parts = reinterpret_cast<const BlockPart*>(chunk->device),
      .part_count = static_cast<uint32_t>(parts.size()),
      .kv_heads = layer.kv_heads};
  std::copy(layer.formats.begin(), layer.formats.end(), arguments.formats);
  bool used[kMostFormats] = {};
  arguments.whole_quads = true;
  for (const BlockPart& part : parts) {
    used[part.format] = true;
    arguments.whole_quads = arguments.whole_quads && part.page_tokens % kQuad == 0;
  }
  const cudaError_t error = QueueExpand(arguments, used, expand_stream_);
  PREFIXD_RETURN_IF_ERROR(context_->tables().Give(chunk, expand_stream_));
  PREFIXD_RETURN_IF_ERROR(FromCuda(error, "load: expand"));
  last_expansion_ = expanded_[half_] = events_[recorded_];
  return RecordLayer(expand_stream_);
}

absl::StatusOr<std::byte*> Load::Scratch(size_t bytes) {
  if (bytes == 0) return nullptr;
  half_ = 1 - half_;
  const bool grows = bytes > half_bytes_;
  const cudaEvent_t out = grows ? last_expansion_ : expanded_[half_];
  if (out != nullptr) {
    PREFIXD_RETURN_IF_ERROR(FromCuda(cudaStreamWaitEvent(stream_, out, 0), "load: scratch"));
  }
  if (grows) {
    if (scratch_ != nullptr) {
      PREFIXD_RETURN_IF_ERROR(FromCuda(cudaFreeAsync(scratch_, stream_), "load: scratch"));
      scratch_ = nullptr;
      half_bytes_ = 0;
    }
    const size_t half = (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
    void* memory = nullptr;
    PREFIXD_RETURN_IF_ERROR(
        FromCuda(cudaMallocFromPoolAsync(&memory, 2 * half, context_->scratch(), stream_),
                 "load: device memory for pages"));
    scratch_ = static_cast<std::byte*>(memory);
    half_bytes_ = half;
  }
  return scratch_ + half_ * half_bytes_;
}

absl::Status Load::Gather(const std::vector<Source>& sources) {
  std::vector<Piece> pieces;
  std::vector<Source> others;
  for (const Source& source : sources) {
    if (source.reach == Context::Reach::kNotPinned) {
      others.push_back(source);
      counts_.bounced_bytes += source.bytes;
      continue;
    }
    pieces.push_back({.from = source.from, .to = source.to, .bytes = source.bytes});
    if (source.reach == Context::Reach::kPinned) counts_.pinned_bytes += source.bytes;
  }
  PREFIXD_RETURN_IF_ERROR(GatherPinned(pieces));
  return GatherBounced(others);
}

absl::Status Load::GatherPinned(const std::vector<Piece>& pieces) {
  if (pieces.empty()) return absl::OkStatus();
  PREFIXD_ASSIGN_OR_RETURN(
      Chunk * chunk,
      context_->tables().Upload(pieces.data(), pieces.size() * sizeof(Piece), stream_));
  const cudaError_t error = QueueGather(reinterpret_cast<const Piece*>(chunk->device),
                                        static_cast<uint32_t>(pieces.size()), stream_);
  PREFIXD_RETURN_IF_ERROR(context_->tables().Give(chunk, stream_));
  return FromCuda(error, "load: gather");
}

absl::Status Load::GatherBounced(const std::vector<Source>& sources) {
  for (size_t i = 0; i < sources.size();) {
    size_t end = i, bytes = 0;
    while (end < sources.size() &&
           (end == i || bytes + sources[end].bytes <= context_->bounce_chunk_bytes())) {
      bytes += sources[end++].bytes;
    }
    PREFIXD_ASSIGN_OR_RETURN(Chunk * chunk, context_->bounce().Take(bytes));
    std::vector<HostCopy> copies;
    std::vector<Piece> pieces;
    for (size_t at = 0; i < end; at += sources[i++].bytes) {
      copies.push_back(
          {.from = sources[i].from, .to = chunk->host + at, .bytes = sources[i].bytes});
      pieces.push_back({.from = chunk->host + at, .to = sources[i].to, .bytes = sources[i].bytes});
    }
    CopyAll(copies, context_->copy_threads());
    const absl::Status queued = GatherPinned(pieces);
    PREFIXD_RETURN_IF_ERROR(context_->bounce().Give(chunk, stream_));
    PREFIXD_RETURN_IF_ERROR(queued);
  }
  return absl::OkStatus();
}

absl::Status Load::Wait(uint32_t layer, cudaStream_t stream) {
  if (layer >= recorded_) {
    return Refuse("layer ", layer, " of ", recorded_, " is waited for");
  }
  PREFIXD_RETURN_IF_ERROR(context_->Enter());
  return FromCuda(cudaStreamWaitEvent(stream, events_[layer], 0), "load: wait");
}

bool Load::Ready(uint32_t layer) {
  if (layer >= recorded_ || !context_->Enter().ok()) return false;
  const cudaError_t state = cudaEventQuery(events_[layer]);
  if (state != cudaSuccess) cudaGetLastError();
  return state == cudaSuccess;
}

absl::Status Load::Keep(cudaStream_t stream) {
  if (held_.empty()) return absl::OkStatus();
  PREFIXD_RETURN_IF_ERROR(context_->Enter());
  PREFIXD_ASSIGN_OR_RETURN(Fence fence, RecordFence(stream));
  readers_.push_back(std::move(fence));
  return absl::OkStatus();
}

absl::Status Load::End(prefixd_cuda_load_counts* out) {
  PREFIXD_RETURN_IF_ERROR(context_->Enter());
  Give(counts_, out);
  for (size_t i = 0; i < recorded_; ++i) {
    PREFIXD_RETURN_IF_ERROR(FromCuda(cudaEventSynchronize(events_[i]), "load"));
  }
  return absl::OkStatus();
}

}  // namespace prefixd::cuda
