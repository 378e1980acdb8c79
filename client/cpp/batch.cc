#include "prefixd/batch.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

namespace prefixd {
namespace {

Status Invalid(const std::string& message) {
  return {.code = StatusCode::kInvalidArgument, .message = "batch: " + message};
}

bool SameFormat(const TensorFormat& a, const TensorFormat& b) {
  return a.codec == b.codec && a.dtype == b.dtype && a.bits == b.bits &&
         a.group_size == b.group_size && a.rotation == b.rotation;
}

PackedView Constant(const MutablePackedView& view) {
  return {.codes = view.codes,
          .scales = view.scales,
          .biases = view.biases,
          .codes_head_stride = view.codes_head_stride,
          .codes_token_stride = view.codes_token_stride,
          .scales_head_stride = view.scales_head_stride,
          .scales_token_stride = view.scales_token_stride};
}

// FailedPrecondition unless the first `tokens` tokens are in `format`: Lease::Gather fills as many
// bytes as the stored format has.
Status CheckFormat(Lease& lease, int layer, uint32_t tokens, uint32_t format) {
  uint32_t at = 0;
  for (const BlockTableEntry& block : lease.block_table(layer)) {
    if (at < tokens && block.units != nullptr && block.format != format) {
      return {StatusCode::kFailedPrecondition,
              "the tokens from " + std::to_string(at) + " on are in format " +
                  std::to_string(block.format) + ", " + std::to_string(format) + " is wanted"};
    }
    at += block.tokens;
  }
  return {};
}

uint32_t Longest(std::span<const uint32_t> lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

}  // namespace

PackedBatch::PackedBatch(const LayerSpec& layer, uint32_t format, std::span<const uint32_t> lengths)
    : heads_(layer.kv_heads), width_(Longest(lengths)), lengths_(lengths.begin(), lengths.end()) {
  const uint64_t slots = uint64_t{heads_} * width_ * lengths.size();
  key_ = Allocate(layer.formats[format].key, layer.key_dim, slots);
  value_ = Allocate(layer.formats[format].value, layer.value_dim, slots);
}

PackedBatch::PackedBatch(const PackedBatch& like, std::vector<uint32_t> lengths)
    : heads_(like.heads_), width_(Longest(lengths)), lengths_(std::move(lengths)) {
  const uint64_t slots = uint64_t{heads_} * width_ * lengths_.size();
  key_ = Allocate(like.key_.format, like.key_.dim, slots);
  value_ = Allocate(like.value_.format, like.value_.dim, slots);
}

PackedBatch::Tensor PackedBatch::Allocate(const TensorFormat& format, uint32_t dim,
                                          uint64_t slots) {
  Tensor tensor{.format = format, .dim = dim, .row = BytesOfRow(format, dim)};
  tensor.codes.resize(slots * tensor.row.codes);
  tensor.scales.resize(slots * tensor.row.scales);
  tensor.biases.resize(slots * tensor.row.biases);
  return tensor;
}

bool PackedBatch::SameLayer(const PackedBatch& other) const {
  return heads_ == other.heads_ && key_.dim == other.key_.dim && value_.dim == other.value_.dim &&
         SameFormat(key_.format, other.key_.format) &&
         SameFormat(value_.format, other.value_.format);
}

MutablePackedView PackedBatch::At(Tensor& tensor, uint32_t row, uint32_t slot) const {
  const size_t at = size_t{row} * heads_ * width_ + slot;
  const RowBytes& bytes = tensor.row;
  return {.codes = tensor.codes.data() + at * bytes.codes,
          .scales = bytes.scales ? tensor.scales.data() + at * bytes.scales : nullptr,
          .biases = bytes.biases ? tensor.biases.data() + at * bytes.biases : nullptr,
          .codes_head_stride = size_t{width_} * bytes.codes,
          .codes_token_stride = bytes.codes,
          .scales_head_stride = size_t{width_} * bytes.scales,
          .scales_token_stride = bytes.scales};
}

MutablePackedView PackedBatch::key(uint32_t row, uint32_t first) {
  return At(key_, row, padding(row) + first);
}
MutablePackedView PackedBatch::value(uint32_t row, uint32_t first) {
  return At(value_, row, padding(row) + first);
}

PackedView PackedBatch::key(uint32_t row, uint32_t first) const {
  return Constant(const_cast<PackedBatch*>(this)->key(row, first));
}
PackedView PackedBatch::value(uint32_t row, uint32_t first) const {
  return Constant(const_cast<PackedBatch*>(this)->value(row, first));
}

void PackedBatch::CopyTokens(const PackedBatch& from, uint32_t from_row, uint32_t row,
                             uint32_t to_first, uint32_t count) {
  if (count == 0) return;
  const auto copy = [&](const std::vector<std::byte>& source, std::vector<std::byte>* target,
                        size_t bytes) {
    if (bytes == 0) return;
    for (size_t head = 0; head < heads_; ++head) {
      const size_t at = (from_row * heads_ + head) * from.width_ + from.padding(from_row);
      const size_t to = (row * heads_ + head) * width_ + padding(row) + to_first;
      std::memcpy(target->data() + to * bytes, source.data() + at * bytes, count * bytes);
    }
  };
  for (const auto& [source, target] :
       {std::pair(&from.key_, &key_), std::pair(&from.value_, &value_)}) {
    copy(source->codes, &target->codes, source->row.codes);
    copy(source->scales, &target->scales, source->row.scales);
    copy(source->biases, &target->biases, source->row.biases);
  }
}

Result<PackedBatch> PackedBatch::Merge(std::span<const PackedBatch* const> batches) {
  try {
    std::vector<uint32_t> lengths;
    for (size_t i = 0; i < batches.size(); ++i) {
      if (!batches[i]->SameLayer(*batches[0])) {
        return {.status = Invalid("batch " + std::to_string(i) +
                                  " is of another layer or format than the first"),
                .held = {}};
      }
      lengths.insert(lengths.end(), batches[i]->lengths_.begin(), batches[i]->lengths_.end());
    }
    if (batches.empty()) return {.status = {}, .held = PackedBatch()};
    PackedBatch merged(*batches[0], std::move(lengths));
    uint32_t to = 0;
    for (const PackedBatch* batch : batches) {
      for (uint32_t row = 0; row < batch->rows(); ++row, ++to) {
        merged.CopyTokens(*batch, row, to, 0, batch->length(row));
      }
    }
    return {.status = {}, .held = std::move(merged)};
  } catch (const std::bad_alloc&) {
    return {.status = {StatusCode::kExhausted, "batch: out of memory"}, .held = {}};
  }
}

Status PackedBatch::Extend(const PackedBatch& other) {
  const PackedBatch* const both[] = {this, &other};
  Result<PackedBatch> merged = Merge(both);
  if (merged.ok()) *this = std::move(merged.value());
  return merged.status;
}

Result<PackedBatch> PackedBatch::Filter(std::span<const uint32_t> rows) const {
  try {
    std::vector<uint32_t> lengths;
    for (const uint32_t row : rows) {
      if (row >= lengths_.size()) {
        return {.status = Invalid("row " + std::to_string(row) + " of " +
                                  std::to_string(lengths_.size())),
                .held = {}};
      }
      lengths.push_back(lengths_[row]);
    }
    PackedBatch kept(*this, std::move(lengths));
    for (uint32_t i = 0; i < rows.size(); ++i)
      kept.CopyTokens(*this, rows[i], i, 0, length(rows[i]));
    return {.status = {}, .held = std::move(kept)};
  } catch (const std::bad_alloc&) {
    return {.status = {StatusCode::kExhausted, "batch: out of memory"}, .held = {}};
  }
}

Status PackedBatch::Append(const PackedBatch& step) {
  try {
    const bool even = std::all_of(step.lengths_.begin(), step.lengths_.end(),
                                  [&](uint32_t length) { return length == step.width_; });
    if (!SameLayer(step) || step.rows() != rows() || !even) {
      return Invalid("a step of " + std::to_string(step.rows()) +
                     " rows, of as many tokens each, " + "in the layer and format of these " +
                     std::to_string(rows()) + " is wanted");
    }
    std::vector<uint32_t> lengths = lengths_;
    for (uint32_t& length : lengths) length += step.width_;
    PackedBatch longer(*this, std::move(lengths));
    for (uint32_t row = 0; row < rows(); ++row) {
      longer.CopyTokens(*this, row, row, 0, length(row));
      longer.CopyTokens(step, row, row, length(row), step.width_);
    }
    *this = std::move(longer);
    return {};
  } catch (const std::bad_alloc&) {
    return {StatusCode::kExhausted, "batch: out of memory"};
  }
}

Result<PackedBatch> PackedBatch::Gather(std::span<Lease* const> leases, int layer,
                                        const LayerSpec& spec, std::span<const uint32_t> lengths,
                                        uint32_t format) {
  if (leases.size() != lengths.size() || format >= spec.formats.size()) {
    return {
        .status = Invalid(std::to_string(lengths.size()) + " lengths for " +
                          std::to_string(leases.size()) + " leases, format " +
                          std::to_string(format) + " of " + std::to_string(spec.formats.size())),
        .held = {}};
  }
  try {
    PackedBatch batch(spec, format, lengths);
    for (uint32_t row = 0; row < leases.size(); ++row) {
      Status status = CheckFormat(*leases[row], layer, lengths[row], format);
      if (status.ok()) {
        status = leases[row]->Gather(layer, 0, lengths[row], batch.key(row), batch.value(row));
      }
      if (status.ok()) continue;
      status.message = "batch: row " + std::to_string(row) + ": " + status.message;
      return {.status = std::move(status), .held = {}};
    }
    return {.status = {}, .held = std::move(batch)};
  } catch (const std::bad_alloc&) {
    return {.status = {StatusCode::kExhausted, "batch: out of memory"}, .held = {}};
  }
}

}  // namespace prefixd
