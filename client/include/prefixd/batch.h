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

// One layer's K and V of a batch: dense planes [rows][kv_heads][width][bytes of a token]. A row is
// a sequence; its tokens are at the right end, zeros at their left.
class PackedBatch {
 public:
  PackedBatch() = default;
  // Makes a batch of zeros. `format`: index into layer.formats. The width is the largest of
  // `lengths`.
  PackedBatch(const LayerSpec& layer, uint32_t format, std::span<const uint32_t> lengths);

  uint32_t rows() const { return static_cast<uint32_t>(lengths_.size()); }
  uint32_t width() const { return width_; }
  uint32_t length(uint32_t row) const { return lengths_[row]; }
  uint32_t padding(uint32_t row) const { return width_ - lengths_[row]; }

  // Return the whole tensor, from row 0 and its padding on; row r begins r * kv_heads heads
  // further.
  MutablePackedView key() { return At(key_, 0, 0); }
  MutablePackedView value() { return At(value_, 0, 0); }
  // Return the tokens of one row from token `first` on, as Plan::WritePacked and Lease::Gather take
  // them. Requires: row < rows(), first <= length(row).
  MutablePackedView key(uint32_t row, uint32_t first = 0);
  MutablePackedView value(uint32_t row, uint32_t first = 0);
  PackedView key(uint32_t row, uint32_t first = 0) const;
  PackedView value(uint32_t row, uint32_t first = 0) const;

  // Returns the rows of all batches, one batch after the other, at the largest width.
  // InvalidArgument unless all are of one layer and format.
  static Result<PackedBatch> Merge(std::span<const PackedBatch* const> batches);
  // Adds the rows of `other` behind these. Errors as Merge.
  Status Extend(const PackedBatch& other);
  // Returns these rows, in this order; the width is that of the longest. InvalidArgument if a row
  // does not exist.
  Result<PackedBatch> Filter(std::span<const uint32_t> rows) const;
  // Returns one row without padding.
  Result<PackedBatch> Extract(uint32_t row) const { return Filter({&row, 1}); }
  // Adds the same number of new tokens to every row, as a step of decoding packed them.
  // InvalidArgument unless `step` has the same number of rows, all of one length, in the same layer
  // and format.
  Status Append(const PackedBatch& step);

  // Copies tokens [0, lengths[i]) of `layer` of lease i into row i, straight from the pages. The
  // leases are of spaces with that layer. Errors are those of Lease::Gather, and FailedPrecondition
  // for tokens in another format than `format`; they name the row.
  static Result<PackedBatch> Gather(std::span<Lease* const> leases, int layer,
                                    const LayerSpec& spec, std::span<const uint32_t> lengths,
                                    uint32_t format = 0);

 private:
  // K or V of all rows.
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
  // Copies the first `count` tokens of row `from_row` of `from` into `row`, from its token
  // `to_first` on.
  void CopyTokens(const PackedBatch& from, uint32_t from_row, uint32_t row, uint32_t to_first,
                  uint32_t count);

  uint32_t heads_ = 0;
  uint32_t width_ = 0;
  std::vector<uint32_t> lengths_;
  Tensor key_, value_;
};

}  // namespace prefixd
