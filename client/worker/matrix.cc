#include "client/worker/matrix.h"

#include <cblas.h>

namespace prefixd::worker {

void Multiply(const Matrix& matrix, uint32_t count, const float* in, float* out) {
  const auto rows = static_cast<blasint>(matrix.rows);
  const auto cols = static_cast<blasint>(matrix.cols);
  if (count == 1) {
    cblas_sgemv(CblasRowMajor, CblasNoTrans, rows, cols, 1.0F, matrix.values.data(), cols, in, 1,
                0.0F, out, 1);
    return;
  }
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<blasint>(count), rows, cols,
              1.0F, in, cols, matrix.values.data(), cols, 0.0F, out, rows);
}

void SetProductThreads(uint32_t threads) { openblas_set_num_threads(static_cast<int>(threads)); }

}  // namespace prefixd::worker
