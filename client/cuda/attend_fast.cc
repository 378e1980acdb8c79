// Which fast kernel a format has, and how it is launched.
#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "attend_arguments.h"
#include "attend_fast_table.h"

namespace prefixd::cuda {
namespace {

bool Fits(const FastEntry& entry, const PairGeometry& pair) {
  const TensorGeometry &key = pair.key, &value = pair.value;
  return key.dim == entry.dim && value.dim == entry.dim && key.codec == entry.key_codec &&
         value.codec == entry.value_codec && key.bits == entry.key_bits &&
         value.bits == entry.value_bits && key.dtype == entry.dtype && value.dtype == entry.dtype &&
         key.layout == entry.layout && value.layout == entry.layout && key.group == entry.group &&
         value.group == entry.group;
}

const FastEntry* EntryOf(const PairGeometry& pair) {
  for (const auto entries : {FastMlxTiled(), FastMlxRows(), FastGgml()}) {
    for (const FastEntry& entry : entries) {
      if (Fits(entry, pair)) return &entry;
    }
  }
  return nullptr;
}

constexpr uint32_t kMostStages = 8;
constexpr uint32_t kBlockReserve = 1024;  // shared memory that CUDA keeps for each thread block

// What a thread block needs beside its stages.
uint32_t FixedBytes(uint32_t warps, uint32_t stages, uint32_t columns, uint32_t dim) {
  return SumFloats(warps, columns, dim) * 4 + (kMostWarps + 1) * kColumns * 8 + warps * stages * 8 +
         16;
}

}  // namespace

bool HasFast(const PairGeometry& pair) { return EntryOf(pair) != nullptr; }

FastLaunch PlanFast(const PairGeometry& pair, uint32_t page_tokens, uint32_t columns,
                    SharedMemory memory, uint32_t blocks_each) {
  const uint32_t stage =
      PlacesOf(pair.key, page_tokens).bytes + PlacesOf(pair.value, page_tokens).bytes;
  const uint32_t dim = pair.key.dim;
  columns = std::min(columns, kColumns);
  const uint32_t room = std::min(memory.most, memory.each / blocks_each - kBlockReserve);
  for (uint32_t warps = kMostWarps / blocks_each; warps >= (blocks_each == 2 ? 3u : 1u); --warps) {
    for (uint32_t stages = kMostStages; stages >= 2; --stages) {
      const uint32_t bytes = warps * stages * stage + FixedBytes(warps, stages, columns, dim);
      if (bytes > room) continue;
      return {.warps = warps,
              .stages = stages,
              .stage_bytes = stage,
              .shared_bytes = bytes,
              .blocks_each = blocks_each};
    }
  }
  return {};
}

cudaError_t PrepareFast(const PairGeometry& pair, uint32_t shared_bytes) {
  // The limit is the kernel's, for all attentions of a GPU that launch it: it only grows.
  static std::mutex mutex;
  static std::map<std::pair<const FastEntry*, int>, uint32_t> limits;  // guarded by it
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const std::lock_guard lock(mutex);
  const FastEntry* const entry = EntryOf(pair);
  uint32_t& limit = limits[{entry, device}];
  if (shared_bytes <= limit) return cudaSuccess;
  const cudaError_t error = entry->prepare(shared_bytes);
  if (error == cudaSuccess) limit = shared_bytes;
  return error;
}

cudaError_t QueueFast(const AttendArguments& arguments, uint32_t format, const FastLaunch& launch,
                      cudaStream_t stream) {
  return EntryOf(arguments.formats[format])->queue(arguments, launch, stream);
}

}  // namespace prefixd::cuda
