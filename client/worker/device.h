// Where a model's arithmetic runs: the CPU (host_device.h) or a GPU (loaded by gpu_library.h). The
// model says what is computed in which order, a device computes it.
//
// Pointers to floats are addresses of the device, whatever it is; only Write() and Read() take the
// host's. A GPU queues the calls and runs them in order: what a call reads must stay as it is until
// the next Read() or Finish(). It tells the first failure there.
//
// The result of a call has the same bits for the same arguments on the same device. That of a row
// depends on nothing in other rows.
//
// One thread and one Model at a time. Standard-library types only: the GPU's part is a library of
// its own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "client/worker/layer_values.h"
#include "prefixd/client.h"

namespace prefixd::worker {

struct DeviceFacts {
  std::string kind;      // "cpu" or "cuda"
  std::string name;      // of the GPU; empty for the CPU
  std::string products;  // the library that multiplies matrices, and its version
};

class PagedAttention;

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceFacts& facts() const = 0;
  // True if the host's memory is the device's: weights are used where they are.
  virtual bool uses_host_memory() const = 0;

  // Returns zeros, 128-byte aligned; null if there is no room. Free() takes them back, and null.
  virtual float* Allocate(size_t floats) = 0;
  virtual void Free(float* memory) = 0;
  // Copies from the host, which may change `from` once the call returned.
  virtual void Write(std::span<const float> from, float* to) = 0;
  virtual void Clear(float* data, size_t floats) = 0;
  // Copies rows of `width` floats that are `stride` apart to a dense place.
  virtual void CopyRows(const float* from, size_t stride, uint32_t width, uint32_t rows,
                        float* to) = 0;
  // Waits for all calls before it, and copies to the host. Fails if one of them failed.
  virtual Status Read(const float* from, std::span<float> to) = 0;
  // Waits for all calls before it. Fails if one of them failed since the last Read() or Finish().
  virtual Status Finish() = 0;

  // out[r] = matrix . in[r]. in: [count, cols], out: [count, rows].
  virtual void Multiply(const PlacedMatrix& matrix, uint32_t count, const float* in,
                        float* out) = 0;
  // RmsNorm() of each vector; `out` may be `in`, and has its rows and heads.
  virtual void Normalize(const PlacedNorm& norm, float epsilon, const Vectors& in,
                         const Vectors& out) = 0;
  // Adds `bias`, [width], to each row; heads are not looked at.
  virtual void AddBias(const float* bias, uint32_t width, const Vectors& rows) = 0;
  // to[i] += from[i]
  virtual void Add(const float* from, float* to, size_t floats) = 0;
  // RoPE, see rope.h. cos and sin: [rows][half].
  virtual void TurnByPosition(const float* cos, const float* sin, uint32_t half,
                              const Vectors& vectors) = 0;
  // Rotation::kHadamard of vectors of `dim`, see prefixd::Rotate().
  virtual void TurnHadamard(uint32_t dim, const Vectors& vectors) = 0;
  // out[r][i] = activation(gate_up[r][i]) * gate_up[r][width + i]
  virtual void Gate(Activation activation, uint32_t width, uint32_t rows, const float* gate_up,
                    float* out) = 0;
  // rows[r][i] *= sigmoid(gates[r * gate_stride + i]) for i < width
  virtual void MultiplyBySigmoid(const float* gates, size_t gate_stride, uint32_t width,
                                 const Vectors& rows) = 0;
  virtual void Delta(const DeltaCall& call) = 0;

  // Attention over pages in the device's memory; null if the device attends in the host's.
  virtual PagedAttention* paged_attention() = 0;
};

// Attention over a device's own copy of pages. A page here is one layer of one block: its K units,
// then its V units, as a BlockTableEntry has them, for Geometry::page_tokens slots.
class PagedAttention {
 public:
  virtual ~PagedAttention() = default;

  struct Geometry {
    std::span<const KvFormat> formats;
    uint32_t query_heads = 0, kv_heads = 0, head_dim = 0;
    uint32_t page_tokens = 0;
    float scale = 0;
  };
  // Comes first, and again when one of them changes. InvalidArgument says what the device lacks.
  virtual Status SetGeometry(const Geometry& geometry) = 0;

  // Copies pages of the host, `pages` units each with page_tokens slots, to pages of the device.
  // `from` must stay as it is until the next Finish() or Read().
  virtual void Load(std::span<const BlockTableEntry> from, std::span<std::byte* const> to) = 0;
  // Says that pages to load lie in this mapping of the daemon's memory, which the device may pin;
  // it keeps the mapping while it does. One that it has changes nothing; another one takes its
  // place.
  virtual void UseArena(const ArenaView& arena) = 0;
  struct Pinned {
    uint64_t bytes = 0;   // of the mapping, which the device reads without a copy by the CPU
    std::string why_not;  // the first refusal; may be empty
  };
  virtual Pinned pinned() const = 0;
  // Quantizes `count` tokens into a page from `slot` on: bit for bit what Sequence::Append()
  // stores. The rows of head h begin at key + h * head_dim; rows are `stride` floats apart.
  struct Rows {
    const float* key = nullptr;
    const float* value = nullptr;
    size_t stride = 0;
    uint32_t count = 0;
  };
  virtual void Quantize(const Rows& rows, uint32_t format, uint32_t slot, std::byte* page) = 0;

  // Attends with `rows` rows at positions first_position, ... over `pages`, whose units are pages
  // of the device, all with page_tokens tokens: slots that no row may see hold zeros.
  struct Call {
    std::span<const BlockTableEntry> pages;
    uint32_t rows = 1, first_position = 0;
    uint32_t window = 0, sink_tokens = 0;
    bool precise = true;
    const float* queries = nullptr;  // [rows][query_heads][head_dim], rows query_stride apart
    size_t query_stride = 0;
    float* out = nullptr;  // [rows][query_heads][head_dim]
  };
  virtual void Attend(const Call& call) = 0;
};

// Floats of a device, freed with it. Movable.
class DeviceFloats {
 public:
  DeviceFloats() = default;
  // ok() is false if there was no room. `device` must outlive it.
  DeviceFloats(Device& device, size_t count)
      : memory_(device.Allocate(count), [&device](float* memory) { device.Free(memory); }),
        device_(&device),
        count_(count) {}
  bool ok() const { return memory_ != nullptr || count_ == 0; }
  float* data() const { return memory_.get(); }
  size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  Device* device() const { return device_; }

 private:
  std::shared_ptr<float> memory_;
  Device* device_ = nullptr;
  size_t count_ = 0;
};

// The function of a library that has a device (gpu_library.h): a new Device for GPU number `gpu`,
// or null and the reason in `why`. `version` is the worker's kVersion.
using OpenCudaDevice = Device*(const char* version, int32_t gpu, std::string* why);
inline constexpr char kOpenCudaDevice[] = "prefixd_worker_cuda_open";

}  // namespace prefixd::worker
