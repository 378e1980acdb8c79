// The CPU as a device that has pages of its own, as a GPU does: what is proven with it holds for
// everything but the GPU's arithmetic. For tests.
#pragma once
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "client/worker/host_device.h"
#include "prefixd/attention.h"
#include "quant/unit.h"

namespace prefixd::worker {

class PagedHost final : public HostDevice, public PagedAttention {
 public:
  explicit PagedHost(uint32_t threads) : HostDevice(threads), threads_(threads) {}

  bool uses_host_memory() const override { return false; }
  PagedAttention* paged_attention() override { return this; }
  uint64_t quantized_tokens() const { return quantized_tokens_; }  // of all layers
  uint64_t loaded_pages() const { return loaded_pages_; }

  Status SetGeometry(const Geometry& geometry) override {
    geometry_ = geometry;
    formats_.assign(geometry.formats.begin(), geometry.formats.end());
    return {};
  }
  void Load(std::span<const BlockTableEntry> from, std::span<std::byte* const> to) override {
    for (size_t i = 0; i < from.size(); ++i) {
      std::memcpy(to[i], from[i].units, UnitsBytes(from[i].format));
    }
    loaded_pages_ += from.size();
  }
  void UseArena(const ArenaView&) override {}
  Pinned pinned() const override { return {}; }
  void Quantize(const Rows& rows, uint32_t format, uint32_t slot, std::byte* page) override {
    const size_t keys = geometry_.kv_heads * UnitBytes(formats_[format].key);
    QuantizeOne(rows, rows.key, formats_[format].key, quant::Side::kKey, slot, page);
    QuantizeOne(rows, rows.value, formats_[format].value, quant::Side::kValue, slot, page + keys);
    quantized_tokens_ += rows.count;
  }
  void Attend(const Call& call) override {
    const Status status = prefixd::Attend(call.pages, formats_, call.queries, call.out,
                                          {.query_rows = call.rows,
                                           .query_heads = geometry_.query_heads,
                                           .kv_heads = geometry_.kv_heads,
                                           .key_dim = geometry_.head_dim,
                                           .value_dim = geometry_.head_dim,
                                           .first_position = call.first_position,
                                           .scale = geometry_.scale,
                                           .threads = threads_,
                                           .window = call.window,
                                           .sink_tokens = call.sink_tokens,
                                           .query_row_stride = call.query_stride,
                                           .query_head_stride = geometry_.head_dim});
    if (!status.ok()) failed_attention_ = status;
  }
  Status Finish() override {
    return failed_attention_.ok() ? HostDevice::Finish() : failed_attention_;
  }

 private:
  size_t UnitBytes(const TensorFormat& format) const {
    return quant::LayoutOfUnit(format, geometry_.head_dim, geometry_.page_tokens).unit_bytes;
  }
  size_t UnitsBytes(uint32_t format) const {
    return geometry_.kv_heads *
           (UnitBytes(formats_[format].key) + UnitBytes(formats_[format].value));
  }
  void QuantizeOne(const Rows& rows, const float* from, const TensorFormat& format,
                   quant::Side side, uint32_t slot, std::byte* units) const {
    const quant::UnitShape shape{.format = format,
                                 .side = side,
                                 .dim = geometry_.head_dim,
                                 .page_tokens = geometry_.page_tokens};
    for (uint32_t head = 0; head < geometry_.kv_heads; ++head) {
      for (uint32_t row = 0; row < rows.count; ++row) {
        const float* vector = from + row * rows.stride + size_t{head} * geometry_.head_dim;
        quant::QuantizeToken(shape, {vector, geometry_.head_dim}, slot + row,
                             units + head * UnitBytes(format));
      }
    }
  }

  const uint32_t threads_;
  Geometry geometry_;
  std::vector<KvFormat> formats_;
  Status failed_attention_;
  uint64_t quantized_tokens_ = 0, loaded_pages_ = 0;
};

}  // namespace prefixd::worker
