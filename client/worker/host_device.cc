#include "client/worker/host_device.h"

#include <algorithm>
#include <new>
#include <utility>

#include "client/worker/gated_delta.h"
#include "client/worker/layer_math.h"
#include "client/worker/matrix.h"
#include "prefixd/attention.h"

namespace prefixd::worker {
namespace {

// A cache line. It also makes a product take the same path through its kernels in every run.
constexpr std::align_val_t kAlignmentOfFloats{128};

}  // namespace

HostDevice::HostDevice(uint32_t threads) { SetProductThreads(threads); }

float* HostDevice::Allocate(size_t floats) {
  auto* memory =
      static_cast<float*>(operator new(floats * sizeof(float), kAlignmentOfFloats, std::nothrow));
  if (memory != nullptr) std::fill_n(memory, floats, 0.0F);
  return memory;
}

void HostDevice::Free(float* memory) { operator delete(memory, kAlignmentOfFloats); }

void HostDevice::Write(std::span<const float> from, float* to) { std::ranges::copy(from, to); }

void HostDevice::Clear(float* data, size_t floats) { std::fill_n(data, floats, 0.0F); }

void HostDevice::CopyRows(const float* from, size_t stride, uint32_t width, uint32_t rows,
                          float* to) {
  for (uint32_t row = 0; row < rows; ++row) {
    std::copy_n(from + row * stride, width, to + size_t{row} * width);
  }
}

Status HostDevice::Read(const float* from, std::span<float> to) {
  std::copy_n(from, to.size(), to.data());
  return Finish();
}

Status HostDevice::Finish() { return std::exchange(failed_, {}); }

void HostDevice::Multiply(const PlacedMatrix& matrix, uint32_t count, const float* in, float* out) {
  worker::Multiply(matrix.values, matrix.rows, matrix.cols, count, in, out);
}

void HostDevice::Normalize(const PlacedNorm& norm, float epsilon, const Vectors& in,
                           const Vectors& out) {
  for (uint32_t row = 0; row < in.rows; ++row) {
    for (uint32_t head = 0; head < in.heads; ++head) {
      RmsNorm(in.at(row, head), {norm.weight, norm.width}, epsilon, out.at(row, head));
    }
  }
}

void HostDevice::AddBias(const float* bias, uint32_t width, const Vectors& rows) {
  for (uint32_t row = 0; row < rows.rows; ++row) {
    float* to = rows.at(row, 0);
    for (uint32_t i = 0; i < width; ++i) to[i] += bias[i];
  }
}

void HostDevice::Add(const float* from, float* to, size_t floats) {
  for (size_t i = 0; i < floats; ++i) to[i] += from[i];
}

void HostDevice::TurnByPosition(const float* cos, const float* sin, uint32_t half,
                                const Vectors& vectors) {
  for (uint32_t row = 0; row < vectors.rows; ++row, cos += half, sin += half) {
    for (uint32_t head = 0; head < vectors.heads; ++head) {
      float* low = vectors.at(row, head);
      float* high = low + half;
      for (uint32_t i = 0; i < half; ++i) {
        const float a = low[i];
        const float b = high[i];
        low[i] = a * cos[i] - b * sin[i];
        high[i] = b * cos[i] + a * sin[i];
      }
    }
  }
}

void HostDevice::TurnHadamard(uint32_t dim, const Vectors& vectors) {
  for (uint32_t row = 0; row < vectors.rows; ++row) {
    const Status turned =
        prefixd::Rotate(vectors.at(row, 0), vectors.heads, vectors.head_stride, dim);
    if (!turned.ok()) failed_ = turned;
  }
}

void HostDevice::Gate(Activation activation, uint32_t width, uint32_t rows, const float* gate_up,
                      float* out) {
  for (uint32_t row = 0; row < rows; ++row) {
    const float* gate = gate_up + 2 * size_t{row} * width;
    const float* up = gate + width;
    float* gated = out + size_t{row} * width;
    if (activation == Activation::kSilu) {
      for (size_t i = 0; i < width; ++i) gated[i] = Silu(gate[i]) * up[i];
    } else {
      for (size_t i = 0; i < width; ++i) gated[i] = GeluTanh(gate[i]) * up[i];
    }
  }
}

void HostDevice::MultiplyBySigmoid(const float* gates, size_t gate_stride, uint32_t width,
                                   const Vectors& rows) {
  for (uint32_t row = 0; row < rows.rows; ++row) {
    float* out = rows.at(row, 0);
    for (size_t i = 0; i < width; ++i) out[i] *= Sigmoid(gates[row * gate_stride + i]);
  }
}

void HostDevice::Delta(const DeltaCall& call) {
  for (uint32_t token = 0; token < call.tokens; ++token) {
    DeltaStep(call.shape, call.weights, call.norm_epsilon,
              call.projections + token * call.projections_stride, call.state,
              call.out + size_t{token} * call.shape.values());
  }
}

}  // namespace prefixd::worker
