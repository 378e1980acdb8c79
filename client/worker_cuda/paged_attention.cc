#include "client/worker_cuda/paged_attention.h"

#include <utility>

namespace prefixd::worker::cuda {
namespace {

// Between two slabs of the daemon's memory: each keeps the GPU's calls waiting for some 10 ms while
// it is pinned (60 MiB of an arena of 8 GiB).
constexpr uint32_t kPinPauseUs = 100'000;

prefixd_tensor_format CFormat(const TensorFormat& format) {
  prefixd_tensor_format c = {};
  c.codec = static_cast<uint8_t>(format.codec);
  c.dtype = static_cast<uint8_t>(format.dtype);
  c.bits = format.bits;
  c.layout = static_cast<uint8_t>(format.layout);
  c.group_size = format.group_size;
  return c;
}

prefixd_block CBlock(const BlockTableEntry& entry) {
  return {.units = entry.units,
          .arena_offset = entry.arena_offset,
          .page_tokens = entry.page_tokens,
          .tokens = entry.tokens,
          .format = entry.format};
}

std::vector<prefixd_block> CBlocks(std::span<const BlockTableEntry> entries) {
  std::vector<prefixd_block> blocks;
  blocks.reserve(entries.size());
  for (const BlockTableEntry& entry : entries) blocks.push_back(CBlock(entry));
  return blocks;
}

}  // namespace

CudaPagedAttention::~CudaPagedAttention() {
  Unpin();
  FreeAttentions();
}

void CudaPagedAttention::Fail(const char* what) {
  if (failed_.empty()) failed_ = std::string(what) + ": " + prefixd_cuda_last_error();
}

void CudaPagedAttention::FreeAttentions() {
  for (const auto& [shape, attention] : attentions_) prefixd_cuda_attention_free(attention);
  attentions_.clear();
}

Status CudaPagedAttention::SetGeometry(const Geometry& geometry) {
  FreeAttentions();
  geometry_ = geometry;
  geometry_.formats = {};  // the caller's; formats_ are kept
  formats_.clear();
  for (const KvFormat& format : geometry.formats) {
    formats_.push_back({.key = CFormat(format.key), .value = CFormat(format.value)});
  }
  if (AttentionOf({.rows = geometry.page_tokens, .precise = 1}) != nullptr) return {};
  return {.code = StatusCode::kInvalidArgument, .message = std::exchange(failed_, {})};
}

prefixd_cuda_attention* CudaPagedAttention::AttentionOf(const Shape& shape) {
  prefixd_cuda_attention*& attention = attentions_[shape];
  if (attention != nullptr) return attention;
  prefixd_cuda_attention_options options = PREFIXD_INIT(prefixd_cuda_attention_options);
  options.formats = formats_.data();
  options.format_count = static_cast<uint32_t>(formats_.size());
  options.query_rows = shape.rows;
  options.query_heads = geometry_.query_heads;
  options.kv_heads = geometry_.kv_heads;
  options.key_dim = options.value_dim = geometry_.head_dim;
  options.scale = geometry_.scale;
  options.window = shape.window;
  options.sink_tokens = shape.sink_tokens;
  options.precise = shape.precise;
  attention = prefixd_cuda_attention_new(context_, &options);
  if (attention == nullptr) Fail("attention");
  return attention;
}

void CudaPagedAttention::Load(std::span<const BlockTableEntry> from,
                              std::span<std::byte* const> to) {
  if (from.empty()) return;
  const std::vector<prefixd_block> blocks = CBlocks(from);
  const std::vector<void*> pages(to.begin(), to.end());
  prefixd_cuda_load_layer layer = PREFIXD_INIT(prefixd_cuda_load_layer);
  layer.blocks = blocks.data();
  layer.block_count = blocks.size();
  layer.formats = formats_.data();
  layer.format_count = static_cast<uint32_t>(formats_.size());
  layer.kv_heads = geometry_.kv_heads;
  layer.key_dim = layer.value_dim = geometry_.head_dim;
  layer.pages = pages.data();
  prefixd_cuda_load_options options = PREFIXD_INIT(prefixd_cuda_load_options);
  options.layers = &layer;
  options.layer_count = 1;
  options.stream = stream_;
  prefixd_cuda_load* load = prefixd_cuda_load_begin(context_, &options);
  if (load == nullptr) return Fail("load of pages");
  loads_.push_back(load);
}

// A daemon that came back with another arena has another mapping.
void CudaPagedAttention::UseArena(const ArenaView& arena) {
  if (arena.mapping == mapping_) return;
  Unpin();
  mapping_ = arena.mapping;
  prefixd_cuda_pin_options options = PREFIXD_INIT(prefixd_cuda_pin_options);
  options.slab_bytes = arena.slab_bytes;
  options.background = 1;
  options.pause_us = kPinPauseUs;
  options.service = reinterpret_cast<const uint64_t*>(arena.service);
  options.service_stride = arena.service_stride;
  options.tell = arena.tell;
  options.teller = arena.teller;
  arena_ = prefixd_cuda_pin(context_, arena.base, arena.bytes, &options);
  why_not_pinned_ = arena_ != nullptr ? "" : prefixd_cuda_last_error();
}

void CudaPagedAttention::Unpin() {
  EndLoads();
  if (arena_ != nullptr) prefixd_cuda_unpin(arena_);
  arena_ = nullptr;
  mapping_.reset();
}

PagedAttention::Pinned CudaPagedAttention::pinned() const {
  if (arena_ == nullptr) return {.bytes = 0, .why_not = why_not_pinned_};
  prefixd_cuda_pin_state state = PREFIXD_INIT(prefixd_cuda_pin_state);
  prefixd_cuda_pin_progress(arena_, &state);
  return {.bytes = state.pinned_bytes, .why_not = state.why_refused};
}

void CudaPagedAttention::EndLoads() {
  for (prefixd_cuda_load* load : loads_) {
    if (prefixd_cuda_load_end(load, nullptr) != PREFIXD_OK) Fail("load of pages");
  }
  loads_.clear();
}

void CudaPagedAttention::QuantizeOne(const Rows& rows, bool value, uint32_t format, uint32_t slot,
                                     std::byte* units) {
  prefixd_cuda_tensor tensor = PREFIXD_INIT(prefixd_cuda_tensor);
  tensor.data = const_cast<float*>(value ? rows.value : rows.key);  // it is only read
  tensor.dtype = PREFIXD_F32;
  tensor.token_stride = static_cast<int64_t>(rows.stride);
  tensor.head_stride = geometry_.head_dim;
  void* page = units;
  prefixd_cuda_quantize_options options = PREFIXD_INIT(prefixd_cuda_quantize_options);
  options.rows = &tensor;
  options.format = value ? formats_[format].value : formats_[format].key;
  options.value = value ? 1 : 0;
  options.kv_heads = geometry_.kv_heads;
  options.dim = geometry_.head_dim;
  options.count = rows.count;
  options.page_tokens = geometry_.page_tokens;
  options.pages = &page;
  options.page_count = 1;
  options.first_slot = slot;
  if (prefixd_cuda_quantize(context_, &options, stream_) != PREFIXD_OK) Fail("quantize");
}

void CudaPagedAttention::Quantize(const Rows& rows, uint32_t format, uint32_t slot,
                                  std::byte* page) {
  const uint64_t key_bytes =
      geometry_.kv_heads *
      prefixd_cuda_unit_bytes(&formats_[format].key, geometry_.head_dim, geometry_.page_tokens);
  QuantizeOne(rows, false, format, slot, page);
  QuantizeOne(rows, true, format, slot, page + key_bytes);
}

void CudaPagedAttention::Attend(const Call& call) {
  prefixd_cuda_attention* attention = AttentionOf({.rows = call.rows,
                                                   .window = call.window,
                                                   .sink_tokens = call.sink_tokens,
                                                   .precise = call.precise ? 1U : 0U});
  if (attention == nullptr) return;
  const std::vector<prefixd_block> blocks = CBlocks(call.pages);
  const prefixd_cuda_sequence sequence = {.blocks = blocks.data(),
                                          .block_count = blocks.size(),
                                          .first_position = call.first_position,
                                          .reserved = 0};
  if (prefixd_cuda_attention_set(attention, &sequence, 1, stream_) != PREFIXD_OK) {
    return Fail("attention");
  }
  prefixd_cuda_heads queries = {}, results = {};
  queries.data = const_cast<float*>(call.queries);  // it is only read
  results.data = call.out;
  queries.dtype = results.dtype = PREFIXD_F32;
  queries.row_stride = static_cast<int64_t>(call.query_stride);
  if (prefixd_cuda_attend(attention, 0, &queries, &results, nullptr, stream_) != PREFIXD_OK) {
    Fail("attention");
  }
}

}  // namespace prefixd::worker::cuda
