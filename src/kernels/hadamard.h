// Hadamard rotation of rows: what an engine does to K and V before they are quantized, to its
// queries, and to the output of attention, for formats with quant::Rotation::kHadamard.
//
// A row of `dim` elements is cut into runs of quant::HadamardBlock(dim), the largest power of two
// that divides it; each run x becomes H x / sqrt(run), H the Walsh-Hadamard matrix in natural
// order: H[i][j] = -1 where i & j has an odd number of bits, else 1. Lengths and products of rows
// stay what they were, so q . k does not change, outliers spread over the run, and the rotation is
// its own inverse, up to rounding.
//
// Thread-safe, allocates nothing. The same bits on every dispatch target: scaled first, then
// butterflies in a fixed order.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace prefixd::kernels {

// Rotates `count` rows of `dim` floats in place. Row i begins at rows + i * stride.
// Requires: dim > 0, stride >= dim.
void RotateRows(float* rows, size_t count, size_t stride, uint32_t dim);

// Rotates one row. This is the definition.
void RotateRowScalar(std::span<float> row);

}  // namespace prefixd::kernels
