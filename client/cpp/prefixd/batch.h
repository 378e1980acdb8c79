// Packed K and V of many sequences in one left-padded tensor, as batching engines hold them: codes,
// scales and biases are moved as they are, never dequantized, never quantized again. Engines whose
// attention walks block tables need none of this.
//
// Standard-library types only. Not thread-safe; owns its memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "prefixd/client.h"

namespace prefixd {

// One layer's K and V of a batch: planes [rows][kv_heads][width][bytes of a row], dense. A row is a
// sequence; its tokens stand at the right end, zeros at their left.
class PackedBatch {
 public:
  PackedBatch() = default;
  // All zeros. `format`: the layer's one in which the rows are. The width is the largest of
  // `lengths`.
  PackedBatch(const LayerSpec& layer, uint32_t format, std::span<const uint32_t> lengths);

  uint32_t rows() const { return static_cast<uint32_t>(lengths_.size()); }
  uint32_t width() const { return width_; }
  uint32_t length(uint32_t row) const { return lengths_[row]; }
  uint32_t padding(uint32_t row) const { return width_ - lengths_[row]; }

  // The whole tensors, from row 0 and its padding on; row r stands r * kv_heads heads further.
  MutablePackedView key() { return At(key_, 0, 0); }
  MutablePackedView value() { return At(value_, 0, 0); }
  // The tokens of one row from its token `first` on: what Plan::WritePacked and Lease::Gather take.
  // Requires: row < rows(), first <= length(row).
  MutablePackedView key(uint32_t row, uint32_t first = 0);
  MutablePackedView value(uint32_t row, uint32_t first = 0);
  PackedView key(uint32_t row, uint32_t first = 0) const;
  PackedView value(uint32_t row, uint32_t first = 0) const;

  // The rows of all batches, one batch after the other, at the largest width. InvalidArgument when
  // they are not of one layer and format.
  static Result<PackedBatch> Merge(std::span<const PackedBatch* const> batches);
  // Adds the rows of `other` behind these. As Merge.
  Status Extend(const PackedBatch& other);
  // These rows, in this order; the width shrinks to the longest of them. InvalidArgument for a row
  // that is not there.
  Result<PackedBatch> Filter(std::span<const uint32_t> rows) const;
  // One row without padding.
  Result<PackedBatch> Extract(uint32_t row) const { return Filter({&row, 1}); }
  // As many new tokens behind every row: what a step of decoding packed. InvalidArgument unless
  // `step` has the same rows, all of one length, in the same layer and format.
  Status Append(const PackedBatch& step);

  // Tokens [0, lengths[i]) of `layer` of lease i as row i, each straight from its pages. The leases
  // are of spaces with that layer. Errors are those of Lease::Gather and name the row.
  static Result<PackedBatch> Gather(std::span<Lease* const> leases, int layer,
                                    const LayerSpec& spec, std::span<const uint32_t> lengths,
                                    uint32_t format = 0);

 private:
  // Of K or of V.
  struct Tensor {
    TensorFormat format{};
    uint32_t dim = 0;
    RowBytes row{};
    std::vector<std::byte> codes{}, scales{}, biases{};
  };
  PackedBatch(const PackedBatch& like, std::vector<uint32_t> lengths);
  static Tensor Allocate(const TensorFormat& format, uint32_t dim, uint64_t slots);
  bool SameLayer(const PackedBatch& other) const;
  MutablePackedView At(Tensor& tensor, uint32_t row, uint32_t slot) const;
  // `count` tokens of a row of `from`, both counted from the row's first token.
  void CopyTokens(const PackedBatch& from, uint32_t from_row, uint32_t row, uint32_t to_first,
                  uint32_t count);

  uint32_t heads_ = 0;
  uint32_t width_ = 0;
  std::vector<uint32_t> lengths_;
  Tensor key_, value_;
};

}  // namespace prefixd
