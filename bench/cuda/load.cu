// From the arena to ready on the GPU: quantized pages beside pinned bf16 pages.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "gpu.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kHeads = 8, kDim = 128, kPageTokens = 64, kTokens = 32768, kLayers = 8;
constexpr uint32_t kPages = kTokens / kPageTokens;
constexpr size_t kArenaBytes = size_t{4} << 30;

// A file in memory, mapped to be read only, as a worker has the daemon's arena.
const std::byte* MapArena() {
  const int file = memfd_create("arena", MFD_CLOEXEC);
  Must(file >= 0 && ftruncate(file, static_cast<off_t>(kArenaBytes)) == 0, "an arena file");
  auto* writer = static_cast<std::byte*>(
      mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  Must(writer != MAP_FAILED, "an arena mapping");
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([=] {
      const size_t part = kArenaBytes / 8;
      auto* words = reinterpret_cast<uint32_t*>(writer + t * part);
      for (size_t i = 0; i < part / 4; ++i)
        words[i] = static_cast<uint32_t>(i * 2654435761u) & 0x3BFF3BFF;
    });
  }
  for (std::thread& thread : threads) thread.join();
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
  const int read_only = open(path, O_RDONLY | O_CLOEXEC);
  void* reader = mmap(nullptr, kArenaBytes, PROT_READ, MAP_SHARED, read_only, 0);
  Must(reader != MAP_FAILED, "an arena mapping");
  munmap(writer, kArenaBytes);
  close(read_only);
  close(file);
  return static_cast<const std::byte*>(reader);
}

struct Target {
  prefixd_format format;
  uint64_t layer_bytes = 0;
  std::vector<std::vector<prefixd_block>> blocks;  // of each layer
};

// Pages at shuffled slabs of 2 MiB of the arena.
Target Place(const prefixd_format& format, const std::byte* arena) {
  Target target{format, 0, {}};
  target.layer_bytes = kHeads * (prefixd_cuda_unit_bytes(&format.key, kDim, kPageTokens) +
                                 prefixd_cuda_unit_bytes(&format.value, kDim, kPageTokens));
  target.blocks.resize(kLayers);
  const uint32_t slabs = kArenaBytes >> 21;
  for (uint32_t i = 0; i < kPages; ++i) {
    const uint64_t slab = uint64_t{i} * 977 % slabs;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const uint64_t offset = (slab << 21) + layer * target.layer_bytes;
      target.blocks[layer].push_back({arena + offset, offset, kPageTokens, kPageTokens, 0});
    }
  }
  return target;
}

struct Took {
  double all_ms = 0, first_ms = 0;
  prefixd_cuda_load_counts counts = {};  // of the last load
};

class Loads {
 public:
  Loads(Bench& bench, const Target& target, bool expands) : bench_(bench), target_(target) {
    const size_t bytes =
        expands ? size_t{kTokens} * kHeads * kDim * 2 * 2 : kPages * target.layer_bytes;
    memory_ = Allocate(bytes * kLayers);
    layers_.assign(kLayers, PREFIXD_INIT(prefixd_cuda_load_layer));
    tensors_.assign(2 * kLayers, PREFIXD_INIT(prefixd_cuda_tensor));
    pages_.resize(kLayers);
    for (uint32_t i = 0; i < kLayers; ++i) {
      std::byte* memory = memory_.get() + i * bytes;
      prefixd_cuda_load_layer& layer = layers_[i];
      layer.blocks = target.blocks[i].data();
      layer.block_count = kPages;
      layer.formats = &target.format;
      layer.format_count = 1;
      layer.kv_heads = kHeads;
      layer.key_dim = layer.value_dim = kDim;
      if (!expands) {
        for (uint32_t p = 0; p < kPages; ++p) pages_[i].push_back(memory + p * target.layer_bytes);
        layer.pages = pages_[i].data();
        continue;
      }
      for (uint32_t side = 0; side < 2; ++side) {
        prefixd_cuda_tensor& tensor = tensors_[2 * i + side];
        tensor.data = memory + side * bytes / 2;
        tensor.dtype = PREFIXD_BF16;
        tensor.token_stride = kHeads * kDim;
        tensor.head_stride = kDim;
      }
      layer.key = &tensors_[2 * i];
      layer.value = &tensors_[2 * i + 1];
    }
  }

  // The pages have names from here on: device pages keep them, and the next loads find them there.
  void NamePages() {
    names_.resize(kLayers);
    for (uint32_t i = 0; i < kLayers; ++i) {
      for (uint32_t p = 0; p < kPages; ++p) names_[i].push_back({i + 1, p + 1});
      layers_[i].names = names_[i].data();
    }
  }
  // Pages are used where they are kept, and copied nowhere.
  void UseInPlace() {
    resident_.assign(kPages, nullptr);
    for (prefixd_cuda_load_layer& layer : layers_) layer.resident = resident_.data();
  }

  Took Measure(int samples) {
    std::vector<double> first;
    Took took;
    took.all_ms = WallMillisecondsOf(samples, [&] {
      const auto begin = std::chrono::steady_clock::now();
      prefixd_cuda_load_options options = PREFIXD_INIT(prefixd_cuda_load_options);
      options.layers = layers_.data();
      options.layer_count = kLayers;
      prefixd_cuda_load* load = prefixd_cuda_load_begin(bench_.cuda, &options);
      Must(load != nullptr, prefixd_cuda_last_error());
      while (prefixd_cuda_load_ready(load, 0) == 0) {
      }
      const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - begin;
      first.push_back(ms.count());
      took.counts = PREFIXD_INIT(prefixd_cuda_load_counts);
      Must(prefixd_cuda_load_end(load, &took.counts));
    });
    std::sort(first.begin(), first.end());
    took.first_ms = first[first.size() / 2];
    return took;
  }

 private:
  Bench& bench_;
  const Target& target_;
  DeviceMemory memory_;
  std::vector<prefixd_cuda_load_layer> layers_;
  std::vector<prefixd_cuda_tensor> tensors_;
  std::vector<std::vector<void*>> pages_;
  std::vector<std::vector<prefixd_cuda_page_name>> names_;
  std::vector<const void*> resident_;
};

prefixd_tensor_format Format(uint8_t codec, uint8_t bits, uint8_t dtype, uint8_t layout) {
  prefixd_tensor_format format = {};
  format.codec = codec;
  format.bits = bits;
  format.dtype = dtype;
  format.group_size = codec == PREFIXD_MLX_AFFINE ? 64 : 0;
  format.layout = layout;
  return format;
}

// The same pages a second time, from device pages: beside the first time, in the same run.
void MeasureDevicePages(Bench& bench, const Target& target, const Took& first, int samples) {
  const uint64_t bytes = uint64_t{kLayers} * kPages * target.layer_bytes;
  Must(prefixd_cuda_keep_pages(bench.cuda, bytes + bytes / 8));
  const auto again = [&](const char* name, Loads& loads) {
    loads.NamePages();
    const Took took = loads.Measure(samples);  // a warm-up fills the device pages
    const double over_pcie =
        static_cast<double>(took.counts.pinned_bytes + took.counts.bounced_bytes);
    const std::string line = std::string("again from device pages, ") + name;
    bench.Add({"load", line, took.all_ms, "ms"});
    bench.Add({"load", line + ", of the first time", took.all_ms / first.all_ms, ""});
    bench.Add({"load", line + ", over PCIe", over_pcie, "bytes"});
    Must(over_pcie == 0 && took.counts.kept_bytes == bytes, "a load from device pages missed");
  };
  Loads in_place(bench, target, false), copied(bench, target, false), expanded(bench, target, true);
  in_place.UseInPlace();
  again("in place", in_place);
  again("copied", copied);
  again("expanded", expanded);
  prefixd_cuda_page_counts counts = PREFIXD_INIT(prefixd_cuda_page_counts);
  Must(prefixd_cuda_page_state(bench.cuda, &counts));
  Must(counts.misses == uint64_t{kLayers} * kPages && counts.used_bytes <= counts.budget_bytes,
       "device pages counted wrongly");
}

}  // namespace

void MeasureLoad(Bench& bench) {
  const std::byte* arena = MapArena();
  const prefixd_format quantized = {Format(PREFIXD_MLX_AFFINE, 8, PREFIXD_F16, PREFIXD_TILED),
                                    Format(PREFIXD_MLX_AFFINE, 4, PREFIXD_F16, PREFIXD_TILED)};
  const prefixd_format raw = {Format(PREFIXD_RAW, 16, PREFIXD_BF16, PREFIXD_ROWS),
                              Format(PREFIXD_RAW, 16, PREFIXD_BF16, PREFIXD_ROWS)};
  const Target small = Place(quantized, arena), large = Place(raw, arena);
  const int samples = bench.quick ? 5 : 15;
  const Took bounced = Loads(bench, small, false).Measure(3);
  bench.Add({"load", "K8/V4, not pinned, by 4 threads", bounced.all_ms, "ms"});
  const auto begin = std::chrono::steady_clock::now();
  prefixd_cuda_arena* pinned = prefixd_cuda_pin(bench.cuda, arena, kArenaBytes, nullptr);
  Must(pinned != nullptr, prefixd_cuda_last_error());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  bench.Add({"load", "pin 1 GiB", took.count() * 1e3 / (kArenaBytes >> 30), "ms"});
  const Took bf16 = Loads(bench, large, false).Measure(samples);
  const Took bf16_tensors = Loads(bench, large, true).Measure(samples);
  const Took pages = Loads(bench, small, false).Measure(samples);
  const Took tensors = Loads(bench, small, true).Measure(samples);
  const double gigabytes =
      1e-9 * static_cast<double>(kLayers) * kPages * static_cast<double>(small.layer_bytes);
  bench.Add({"load", "bf16 pages", bf16.all_ms, "ms"});
  bench.Add({"load", "bf16 pages into tensors", bf16_tensors.all_ms, "ms"});
  bench.Add({"load", "K8/V4 pages", pages.all_ms, "ms"});
  bench.Add({"load", "K8/V4 pages", gigabytes / pages.all_ms * 1e3, "GB/s"});
  bench.Add({"load", "K8/V4 pages into bf16 tensors", tensors.all_ms, "ms"});
  const double best_bf16 = std::min(bf16.all_ms, bf16_tensors.all_ms);
  bench.Add({"load", "K8/V4 pages, of pinned bf16", pages.all_ms / best_bf16, "", .45, true});
  bench.Add({"load", "K8/V4 pages into bf16 tensors, of pinned bf16", tensors.all_ms / best_bf16,
             "", .45, true});
  bench.Add({"load", "first layer of 8 ready, pages", pages.first_ms, "ms", 1.5, true});
  bench.Add({"load", "first layer of 8 ready, tensors", tensors.first_ms, "ms", 1.5, true});
  MeasureDevicePages(bench, small, pages, samples);
  prefixd_cuda_unpin(pinned);
  munmap(const_cast<std::byte*>(arena), kArenaBytes);
}

}  // namespace prefixd::bench
