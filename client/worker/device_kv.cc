#include "client/worker/device_kv.h"

#include <algorithm>
#include <span>
#include <string>

#include "base/status.h"
#include "quant/format.h"

namespace prefixd::worker {
namespace {

constexpr size_t kPieceBytes = size_t{64} << 20;

template <typename... Parts>
absl::Status Broken(const Parts&... parts) {
  return absl::InternalError(absl::StrCat("device: ", parts...));
}

absl::Status Told(const Status& status, const char* what) {
  if (status.ok()) return absl::OkStatus();
  return Broken(what, ": ", status.message);
}

float* AsFloats(std::byte* page) { return reinterpret_cast<float*>(page); }

}  // namespace

std::byte* PagePool::Take(size_t bytes) {
  std::vector<std::byte*>& free = free_[bytes];
  if (!free.empty()) {
    std::byte* page = free.back();
    free.pop_back();
    device_.Clear(AsFloats(page), bytes / sizeof(float));
    return page;
  }
  if (pieces_.empty() || pieces_.back().size() * sizeof(float) - used_ < bytes) {
    DeviceFloats piece(device_, std::max(bytes, kPieceBytes) / sizeof(float));
    if (!piece.ok()) return nullptr;
    pieces_.push_back(std::move(piece));
    used_ = 0;
  }
  auto* page = reinterpret_cast<std::byte*>(pieces_.back().data()) + used_;
  used_ += bytes;
  return page;
}

void PagePool::GiveBack(std::byte* page, size_t bytes) { free_[bytes].push_back(page); }

std::byte* PagePool::Zeros(size_t bytes) {
  std::byte*& page = zeros_[bytes];
  if (page == nullptr) page = Take(bytes);
  return page;
}

void KvPages::Clear() {
  for (const auto& [page, bytes] : taken_) pool_->GiveBack(page, bytes);
  taken_.clear();
  for (Layer& layer : layers_) layer = {};
}

DeviceKv::DeviceKv(Device& device, const ModelConfig& config, std::vector<KvFormat> formats,
                   float scale)
    : device_(device),
      attention_(*device.paged_attention()),
      config_(config),
      formats_(std::move(formats)),
      scale_(scale),
      pool_(std::make_shared<PagePool>(device)) {}

absl::Status DeviceKv::SetGrid(uint32_t block_tokens) {
  grid_ = block_tokens;
  const size_t floats = size_t{config_.layers} * grid_ * row_floats();
  kept_rows_ = DeviceFloats(device_, floats);
  host_rows_ = Floats(floats);
  if (!kept_rows_.ok()) return absl::ResourceExhaustedError("device: no room for a step's rows");
  return Told(attention_.SetGeometry({.formats = formats_,
                                      .query_heads = config_.query_heads,
                                      .kv_heads = config_.kv_heads,
                                      .head_dim = config_.head_dim,
                                      .page_tokens = grid_,
                                      .scale = scale_}),
              "attention");
}

size_t DeviceKv::PageBytes(uint32_t format) const {
  const KvFormat& kv = formats_[format];
  return size_t{config_.kv_heads} *
         (quant::LayoutOfUnit(kv.key, config_.head_dim, grid_).unit_bytes +
          quant::LayoutOfUnit(kv.value, config_.head_dim, grid_).unit_bytes);
}

absl::Status DeviceKv::Begin(const Step& step) {
  if (step.state == nullptr) {
    return absl::InvalidArgumentError("device: a step without a RunningState");
  }
  step_ = step;
  kept_.clear();
  new_format_.reset();
  if (step.state->pages == nullptr) {
    step.state->pages = std::make_shared<KvPages>(pool_, config_.layers);
  }
  KvPages& pages = *step.state->pages;
  const bool ahead = std::ranges::any_of(
      pages.layers_, [&](const Layer& layer) { return layer.tokens > step.begin; });
  if (ahead) pages.Clear();  // the sequence was restarted
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> DeviceKv::NewPage(uint32_t format) {
  const size_t bytes = PageBytes(format);
  std::byte* page = pool_->Take(bytes);
  if (page == nullptr) return absl::ResourceExhaustedError("device: no room for pages of K and V");
  step_.state->pages->taken_.emplace_back(page, bytes);
  return page;
}

// A block may be absent only where none of the step's tokens sees it.
absl::Status DeviceKv::CheckUnseen(uint32_t layer, const LayerShape& shape, uint32_t block) const {
  const uint64_t begin = uint64_t{block} * grid_, end = begin + grid_;
  const bool slides = shape.window > 0;
  if (slides && begin >= shape.sink_tokens && end + shape.window <= uint64_t{step_.begin} + 1) {
    return absl::OkStatus();
  }
  return Broken("layer ", layer, " sees block ", block, ", which the sequence does not have");
}

absl::Status DeviceKv::Load(uint32_t layer, const LayerShape& shape, Layer* on_device) {
  const uint32_t blocks = step_.begin / grid_;
  if (on_device->tokens < step_.begin) on_device->pages.resize(on_device->tokens / grid_);
  if (on_device->pages.size() >= blocks) return absl::OkStatus();
  const std::span<const BlockTableEntry> table =
      step_.sequence->block_table(static_cast<int>(layer));
  if (table.size() < blocks) return Broken("layer ", layer, " has ", table.size(), " blocks");
  std::vector<BlockTableEntry> from;
  std::vector<std::byte*> to;
  for (auto block = static_cast<uint32_t>(on_device->pages.size()); block < blocks; ++block) {
    const BlockTableEntry& entry = table[block];
    if (entry.units == nullptr) {
      PREFIXD_RETURN_IF_ERROR(CheckUnseen(layer, shape, block));
      std::byte* zeros = pool_->Zeros(PageBytes(0));
      if (zeros == nullptr) return absl::ResourceExhaustedError("device: no room for a page");
      on_device->pages.push_back(PageOf(zeros, 0));
      continue;
    }
    if (entry.page_tokens != grid_ || entry.tokens != grid_) {
      return Broken("block ", block, " of layer ", layer, " is not whole");
    }
    PREFIXD_ASSIGN_OR_RETURN(std::byte * page, NewPage(entry.format));
    from.push_back(entry);
    to.push_back(page);
    on_device->pages.push_back(PageOf(page, entry.format));
  }
  if (const std::optional<ArenaView> arena = step_.sequence->arena()) attention_.UseArena(*arena);
  attention_.Load(from, to);
  on_device->tokens = blocks * grid_;
  return absl::OkStatus();
}

float* DeviceKv::Keep(const float* keys, size_t stride) {
  float* to = kept_rows_.data() + kept_.size() * step_.rows * row_floats();
  device_.CopyRows(keys, stride, static_cast<uint32_t>(row_floats()), step_.rows, to);
  return to;
}

absl::Status DeviceKv::AppendKept(uint32_t layer, const float* rows) {
  const auto view = [&](const float* data) {
    return TensorView{.data = data,
                      .dtype = Dtype::kF32,
                      .head_stride = config_.head_dim,
                      .token_stride = row_floats()};
  };
  return Told(step_.sequence->Append(static_cast<int>(layer), step_.begin, step_.rows, view(rows),
                                     view(rows + row_floats() / 2)),
              "append");
}

BlockTableEntry DeviceKv::PageOf(std::byte* page, uint32_t format) const {
  return {.units = page, .page_tokens = grid_, .tokens = grid_, .format = format};
}

absl::Status DeviceKv::ThroughHost(uint32_t layer, const float* keys, size_t stride,
                                   Layer* on_device) {
  const float* kept = Keep(keys, stride);
  float* rows = host_rows_.data() + (kept - kept_rows_.data());
  PREFIXD_RETURN_IF_ERROR(
      Told(device_.Read(kept, {rows, step_.rows * row_floats()}), "a step's keys and values"));
  PREFIXD_RETURN_IF_ERROR(AppendKept(layer, rows));
  const uint32_t block = step_.begin / grid_;
  PREFIXD_ASSIGN_OR_RETURN(const BlockTableEntry appended, BlockOf(layer, block));
  if (on_device->pages.size() == block) {
    PREFIXD_ASSIGN_OR_RETURN(std::byte * page, NewPage(appended.format));
    on_device->pages.push_back(PageOf(page, appended.format));
  }
  if (step_.begin % grid_ == 0) new_format_ = appended.format;
  auto* page = const_cast<std::byte*>(on_device->pages.back().units);
  attention_.Load({&appended, 1}, {&page, 1});
  return absl::OkStatus();
}

absl::StatusOr<BlockTableEntry> DeviceKv::BlockOf(uint32_t layer, uint32_t block) const {
  const std::span<const BlockTableEntry> table =
      step_.sequence->block_table(static_cast<int>(layer));
  if (table.size() <= block || table[block].units == nullptr || table[block].page_tokens != grid_) {
    return Broken("layer ", layer, " has no block ", block, " of ", grid_, " slots");
  }
  return table[block];
}

void DeviceKv::OnDevice(uint32_t layer, const float* keys, size_t stride, const Layer& on_device) {
  const BlockTableEntry& entry = on_device.pages.back();
  Keep(keys, stride);
  kept_.push_back({.layer = layer, .format = entry.format});
  attention_.Quantize(
      {.key = keys, .value = keys + row_floats() / 2, .stride = stride, .count = step_.rows},
      entry.format, step_.begin % grid_, const_cast<std::byte*>(entry.units));
}

absl::Status DeviceKv::Append(uint32_t layer, const float* keys, size_t stride, Layer* on_device) {
  const uint32_t block = step_.begin / grid_;
  if (step_.begin % grid_ == 0 && on_device->pages.size() == block && new_format_.has_value()) {
    PREFIXD_ASSIGN_OR_RETURN(std::byte * page, NewPage(*new_format_));
    on_device->pages.push_back(PageOf(page, *new_format_));
    OnDevice(layer, keys, stride, *on_device);
  } else if (on_device->pages.size() == block + 1 && on_device->tokens == step_.begin) {
    OnDevice(layer, keys, stride, *on_device);
  } else {
    PREFIXD_RETURN_IF_ERROR(ThroughHost(layer, keys, stride, on_device));
  }
  on_device->tokens = step_.begin + step_.rows;
  return absl::OkStatus();
}

absl::Status DeviceKv::Attend(uint32_t layer, const float* qkv, size_t stride, float* out) {
  const LayerShape shape = config_.layer(layer);
  Layer& on_device = step_.state->pages->layers_[layer];
  PREFIXD_RETURN_IF_ERROR(Load(layer, shape, &on_device));
  const size_t query_width = size_t{config_.query_heads} * config_.head_dim;
  PREFIXD_RETURN_IF_ERROR(
      Append(layer, qkv + step_.slot * stride + query_width, stride, &on_device));
  attention_.Attend({.pages = on_device.pages,
                     .rows = step_.product,
                     .first_position = step_.begin - step_.slot,
                     .window = shape.window,
                     .sink_tokens = shape.sink_tokens,
                     .precise = step_.precise,
                     .queries = qkv,
                     .query_stride = stride,
                     .out = out});
  return absl::OkStatus();
}

absl::Status DeviceKv::End() {
  if (kept_.empty()) return Told(device_.Finish(), "a step");
  const size_t each = step_.rows * row_floats();
  PREFIXD_RETURN_IF_ERROR(Told(
      device_.Read(kept_rows_.data(), host_rows_.span().first(kept_.size() * each)), "a step"));
  for (size_t i = 0; i < kept_.size(); ++i) {
    const uint32_t layer = kept_[i].layer;
    PREFIXD_RETURN_IF_ERROR(AppendKept(layer, host_rows_.data() + i * each));
    PREFIXD_ASSIGN_OR_RETURN(const BlockTableEntry appended, BlockOf(layer, step_.begin / grid_));
    if (appended.format != kept_[i].format) {
      return Broken("layer ", layer, " is stored in format ", appended.format,
                    " and was attended on in ", kept_[i].format);
    }
  }
  kept_.clear();
  return absl::OkStatus();
}

}  // namespace prefixd::worker
