// A weight matrix and the products with it that a decoder needs, by OpenBLAS.
//
// Matrix is a plain value; Multiply is called from one thread at a time and uses the threads that
// SetProductThreads set for the process.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "client/worker/floats.h"

namespace prefixd::worker {

// values: [rows, cols] row-major; rows are outputs, cols inputs, as checkpoints store them.
struct Matrix {
  Matrix() = default;
  Matrix(uint32_t row_count, uint32_t col_count)
      : rows(row_count), cols(col_count), values(size_t{row_count} * col_count) {}
  float* row(uint32_t index) { return values.data() + size_t{index} * cols; }
  const float* row(uint32_t index) const { return values.data() + size_t{index} * cols; }

  uint32_t rows = 0;
  uint32_t cols = 0;
  Floats values;
};

// Shared matrices never change, so reading needs no lock.
using SharedMatrix = std::shared_ptr<const Matrix>;

// Computes out[r] = matrix . in[r] for `count` vectors.
// in: [count, matrix.cols], out: [count, matrix.rows]. With the same `count` and threads, vector
// r's result depends only on in[r] and r: what the other vectors hold, zero or not, changes no bit.
// Another `count` adds in another order.
void Multiply(const float* values, uint32_t rows, uint32_t cols, uint32_t count, const float* in,
              float* out);
inline void Multiply(const Matrix& matrix, uint32_t count, const float* in, float* out) {
  Multiply(matrix.values.data(), matrix.rows, matrix.cols, count, in, out);
}

void SetProductThreads(uint32_t threads);

}  // namespace prefixd::worker
