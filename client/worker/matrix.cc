#include "client/worker/matrix.h"

#include <cblas.h>

namespace prefixd::worker {

void Multiply(const float* values, uint32_t rows, uint32_t cols, uint32_t count, const float* in,
              float* out) {
  const auto outputs = static_cast<blasint>(rows), inputs = static_cast<blasint>(cols);
  if (count == 1) {
    cblas_sgemv(CblasRowMajor, CblasNoTrans, outputs, inputs, 1.0F, values, inputs, in, 1, 0.0F,
                out, 1);
    return;
  }
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<blasint>(count), outputs, inputs,
              1.0F, in, inputs, values, inputs, 0.0F, out, outputs);
}

void SetProductThreads(uint32_t threads) { openblas_set_num_threads(static_cast<int>(threads)); }

}  // namespace prefixd::worker
