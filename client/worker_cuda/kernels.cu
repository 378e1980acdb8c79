#include <algorithm>

#include "client/worker_cuda/kernels.h"

namespace prefixd::worker::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kWarp = 32;
constexpr uint32_t kWarps = kThreads / kWarp;
constexpr uint32_t kMostBlocks = 4096;

uint32_t BlocksFor(size_t items) {
  return static_cast<uint32_t>(
      std::clamp<size_t>((items + kThreads - 1) / kThreads, 1, kMostBlocks));
}

// The items of this thread: its number, then each that is a grid further.
#define FOR_EACH_ITEM(i, count)                                               \
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < (count); \
       i += size_t{gridDim.x} * blockDim.x)

__device__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ float Silu(float x) { return x / (1.0f + expf(-x)); }
__device__ float Softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
__device__ float GeluTanh(float x) {
  constexpr float kRootOfTwoByPi = 0.7978845608f;
  return 0.5f * x * (1.0f + tanhf(kRootOfTwoByPi * (x + 0.044715f * x * x * x)));
}

template <typename T>
__device__ T SumOfWarp(T x) {
  for (uint32_t step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// The sum over all threads of a block of kThreads, in all of them. `shared`: [kWarps].
template <typename T>
__device__ T SumOfBlock(T x, T* shared) {
  x = SumOfWarp(x);
  __syncthreads();  // of an earlier use of `shared`
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  T sum = 0;
  for (uint32_t warp = 0; warp < kWarps; ++warp) sum += shared[warp];
  return sum;
}

__device__ float NormFactor(double squares, uint32_t width, float epsilon) {
  const float mean = static_cast<float>(squares / width);
  return 1.0f / sqrtf(mean + epsilon);
}

// A thread block for each vector.
__global__ void NormalizeVectors(PlacedNorm norm, float epsilon, Vectors in, Vectors out) {
  __shared__ double shared[kWarps];
  const size_t row = blockIdx.x / in.heads, head = blockIdx.x % in.heads;
  const float* from = in.data + row * in.row_stride + head * in.head_stride;
  float* to = out.data + row * out.row_stride + head * out.head_stride;
  double squares = 0;
  for (uint32_t i = threadIdx.x; i < norm.width; i += kThreads) {
    squares += static_cast<double>(from[i]) * from[i];
  }
  const float factor = NormFactor(SumOfBlock(squares, shared), norm.width, epsilon);
  for (uint32_t i = threadIdx.x; i < norm.width; i += kThreads) {
    to[i] = norm.weight[i] * (from[i] * factor);
  }
}

__global__ void AddBiasToRows(const float* bias, uint32_t width, Vectors rows) {
  FOR_EACH_ITEM(i, size_t{rows.rows} * width) {
    rows.data[i / width * rows.row_stride + i % width] += bias[i % width];
  }
}

__global__ void AddFloats(const float* from, float* to, size_t floats) {
  FOR_EACH_ITEM(i, floats) to[i] += from[i];
}

__global__ void TurnPairs(const float* cos, const float* sin, uint32_t half, Vectors vectors) {
  FOR_EACH_ITEM(i, size_t{vectors.rows} * vectors.heads * half) {
    const size_t pair = i % half, head = i / half % vectors.heads;
    const size_t row = i / half / vectors.heads;
    float* low = vectors.data + row * vectors.row_stride + head * vectors.head_stride + pair;
    const float c = cos[row * half + pair], s = sin[row * half + pair];
    const float a = low[0], b = low[half];
    low[0] = a * c - b * s;
    low[half] = b * c + a * s;
  }
}

// A thread block for each vector; see kernels/hadamard.h.
__global__ void TurnRuns(uint32_t dim, uint32_t run, float factor, Vectors vectors) {
  extern __shared__ float turned[];
  const size_t row = blockIdx.x / vectors.heads, head = blockIdx.x % vectors.heads;
  float* vector = vectors.data + row * vectors.row_stride + head * vectors.head_stride;
  for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x) turned[i] = vector[i] * factor;
  for (uint32_t half = 1; half < run; half *= 2) {
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x) {
      if ((i & half) != 0) continue;
      const float a = turned[i], b = turned[i + half];
      turned[i] = a + b;
      turned[i + half] = a - b;
    }
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x) vector[i] = turned[i];
}

template <bool kSilu>
__global__ void GateRows(uint32_t width, uint32_t rows, const float* gate_up, float* out) {
  FOR_EACH_ITEM(i, size_t{rows} * width) {
    const float* gate = gate_up + i / width * 2 * width + i % width;
    out[i] = (kSilu ? Silu(gate[0]) : GeluTanh(gate[0])) * gate[width];
  }
}

__global__ void MultiplyRowsBySigmoid(const float* gates, size_t gate_stride, uint32_t width,
                                      Vectors rows) {
  FOR_EACH_ITEM(i, size_t{rows.rows} * width) {
    rows.data[i / width * rows.row_stride + i % width] *=
        Sigmoid(gates[i / width * gate_stride + i % width]);
  }
}

// The shape's sums, which are the host's functions.
struct DeltaSizes {
  explicit DeltaSizes(const DeltaShape& shape)
      : keys(shape.keys()), values(shape.values()), channels(shape.channels()) {}
  uint32_t keys, values, channels;
};

// A thread for each channel, token by token; moves the state's history on.
__global__ void ConvolveTokens(DeltaCall call, DeltaSizes sizes, float* mixed) {
  const size_t channels = sizes.channels;
  const uint32_t before = call.shape.convolution - 1;
  FOR_EACH_ITEM(channel, channels) {
    const float* taps = call.weights.convolution + channel * call.shape.convolution;
    float* history = call.state + channel;
    for (uint32_t token = 0; token < call.tokens; ++token) {
      const float now = call.projections[token * call.projections_stride + channel];
      float sum = taps[before] * now;
      for (uint32_t i = 0; i < before; ++i) sum += taps[i] * history[i * channels];
      mixed[token * channels + channel] = Silu(sum);
      for (uint32_t i = 0; i + 1 < before; ++i) history[i * channels] = history[(i + 1) * channels];
      if (before > 0) history[(before - 1) * channels] = now;
    }
  }
}

struct DeltaHead {
  const float* query;  // in shared memory, of length 1 / sqrt(key_dim) and 1
  const float* key;
  const float* value;
  float decay, correction;
};

// The warp's rows of the head's memory, [value_dim][key_dim]: forget, correct, read.
__device__ void Recall(const DeltaShape& shape, const DeltaHead& head, float* memory,
                       float* results) {
  const uint32_t lane = threadIdx.x % kWarp;
  for (uint32_t v = threadIdx.x / kWarp; v < shape.value_dim; v += kWarps) {
    float* row = memory + size_t{v} * shape.key_dim;
    float known = 0;
    for (uint32_t k = lane; k < shape.key_dim; k += kWarp) {
      row[k] *= head.decay;
      known += row[k] * head.key[k];
    }
    const float delta = (head.value[v] - SumOfWarp(known)) * head.correction;
    float read = 0;
    for (uint32_t k = lane; k < shape.key_dim; k += kWarp) {
      row[k] += head.key[k] * delta;
      read += row[k] * head.query[k];
    }
    read = SumOfWarp(read);
    if (lane == 0) results[v] = read;
  }
}

// Copies a vector of key_dim to shared memory and scales it to length `scale`.
__device__ void Scale(const float* from, uint32_t dim, float scale, float* to, float* sums) {
  constexpr float kNormEpsilon = 1e-6f;  // as in client/worker/gated_delta.cc
  float squares = 0;
  for (uint32_t i = threadIdx.x; i < dim; i += kThreads) squares += from[i] * from[i];
  const float factor = scale / sqrtf(SumOfBlock(squares, sums) + kNormEpsilon);
  for (uint32_t i = threadIdx.x; i < dim; i += kThreads) to[i] = from[i] * factor;
}

// A thread block for each value head, token by token.
__global__ void RecallTokens(DeltaCall call, DeltaSizes sizes, const float* mixed) {
  extern __shared__ float vectors[];  // query, key, results
  __shared__ float sums[kWarps];
  __shared__ double squares_of_warps[kWarps];
  const DeltaShape shape = call.shape;
  const uint32_t head = blockIdx.x, key_head = head / (shape.value_heads / shape.key_heads);
  float* query = vectors;
  float* key = query + shape.key_dim;
  float* results = key + shape.key_dim;
  const size_t z = sizes.channels, b = z + sizes.values, a = b + shape.value_heads;
  float* memory = call.state + size_t{shape.convolution - 1} * sizes.channels +
                  size_t{head} * shape.value_dim * shape.key_dim;
  for (uint32_t token = 0; token < call.tokens; ++token) {
    const float* row = call.projections + token * call.projections_stride;
    const float* own = mixed + size_t{token} * sizes.channels;
    Scale(own + size_t{key_head} * shape.key_dim, shape.key_dim,
          1.0f / sqrtf(static_cast<float>(shape.key_dim)), query, sums);
    Scale(own + sizes.keys + size_t{key_head} * shape.key_dim, shape.key_dim, 1, key, sums);
    __syncthreads();
    const float step = Softplus(row[a + head] + call.weights.step_biases[head]);
    Recall(shape,
           {.query = query,
            .key = key,
            .value = own + 2 * size_t{sizes.keys} + size_t{head} * shape.value_dim,
            .decay = expf(-call.weights.forget_rates[head] * step),
            .correction = Sigmoid(row[b + head])},
           memory, results);
    __syncthreads();
    double squares = 0;
    for (uint32_t i = threadIdx.x; i < shape.value_dim; i += kThreads) {
      squares += static_cast<double>(results[i]) * results[i];
    }
    const float factor =
        NormFactor(SumOfBlock(squares, squares_of_warps), shape.value_dim, call.norm_epsilon);
    const float* gates = row + z + size_t{head} * shape.value_dim;
    float* out = call.out + size_t{token} * sizes.values + size_t{head} * shape.value_dim;
    for (uint32_t i = threadIdx.x; i < shape.value_dim; i += kThreads) {
      out[i] = call.weights.norm[i] * (results[i] * factor) * Silu(gates[i]);
    }
    __syncthreads();  // before the next token's vectors
  }
}

}  // namespace

cudaError_t QueueNormalize(const PlacedNorm& norm, float epsilon, const Vectors& in,
                           const Vectors& out, cudaStream_t stream) {
  NormalizeVectors<<<in.rows * in.heads, kThreads, 0, stream>>>(norm, epsilon, in, out);
  return cudaGetLastError();
}

cudaError_t QueueAddBias(const float* bias, uint32_t width, const Vectors& rows,
                         cudaStream_t stream) {
  AddBiasToRows<<<BlocksFor(size_t{rows.rows} * width), kThreads, 0, stream>>>(bias, width, rows);
  return cudaGetLastError();
}

cudaError_t QueueAdd(const float* from, float* to, size_t floats, cudaStream_t stream) {
  AddFloats<<<BlocksFor(floats), kThreads, 0, stream>>>(from, to, floats);
  return cudaGetLastError();
}

cudaError_t QueueTurnByPosition(const float* cos, const float* sin, uint32_t half,
                                const Vectors& vectors, cudaStream_t stream) {
  const size_t pairs = size_t{vectors.rows} * vectors.heads * half;
  TurnPairs<<<BlocksFor(pairs), kThreads, 0, stream>>>(cos, sin, half, vectors);
  return cudaGetLastError();
}

cudaError_t QueueTurnHadamard(uint32_t dim, uint32_t run, const Vectors& vectors,
                              cudaStream_t stream) {
  const float factor = 1.0f / sqrtf(static_cast<float>(run));
  TurnRuns<<<vectors.rows * vectors.heads, 128, dim * sizeof(float), stream>>>(dim, run, factor,
                                                                               vectors);
  return cudaGetLastError();
}

cudaError_t QueueGate(Activation activation, uint32_t width, uint32_t rows, const float* gate_up,
                      float* out, cudaStream_t stream) {
  const uint32_t blocks = BlocksFor(size_t{rows} * width);
  if (activation == Activation::kSilu) {
    GateRows<true><<<blocks, kThreads, 0, stream>>>(width, rows, gate_up, out);
  } else {
    GateRows<false><<<blocks, kThreads, 0, stream>>>(width, rows, gate_up, out);
  }
  return cudaGetLastError();
}

cudaError_t QueueMultiplyBySigmoid(const float* gates, size_t gate_stride, uint32_t width,
                                   const Vectors& rows, cudaStream_t stream) {
  MultiplyRowsBySigmoid<<<BlocksFor(size_t{rows.rows} * width), kThreads, 0, stream>>>(
      gates, gate_stride, width, rows);
  return cudaGetLastError();
}

cudaError_t QueueDelta(const DeltaCall& call, float* mixed, cudaStream_t stream) {
  constexpr size_t kSharedBytes = 40 << 10;
  const size_t shared = (2 * size_t{call.shape.key_dim} + call.shape.value_dim) * sizeof(float);
  if (shared > kSharedBytes) return cudaErrorInvalidValue;
  const DeltaSizes sizes(call.shape);
  ConvolveTokens<<<BlocksFor(sizes.channels), kThreads, 0, stream>>>(call, sizes, mixed);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  RecallTokens<<<call.shape.value_heads, kThreads, shared, stream>>>(call, sizes, mixed);
  return cudaGetLastError();
}

}  // namespace prefixd::worker::cuda
