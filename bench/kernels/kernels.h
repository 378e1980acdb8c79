// kernels: what quantize, dequantize, relayout and attention reach, one file a family. Each
// verifies first, then times beside its reference, adds rows, and judges what issue "kernels at
// memory speed" promises.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/common/bench.h"
#include "bench/common/page_store.h"
#include "bench/common/reference_loops.h"
#include "bench/kernels/attention_call.h"
#include "quant/format.h"

namespace prefixd::bench {

// A pair of formats by the name that lines give it.
struct KernelFormat {
  std::string name;  // "8/4 tiled"
  quant::KvFormat format;
  // What decode promises, as a share of a stream read; 0 = nothing.
  double decode_floor = 0;
};
std::vector<KernelFormat> KernelFormats();
// The same format in layout rows.
KernelFormat RowsOf(KernelFormat format);
const KernelFormat& FormatNamed(const std::vector<KernelFormat>& formats, const std::string& name);

// The tmpfs for arena files: the one that was asked for, else one with huge pages, else /dev/shm
// and a note that says why.
std::string FolderForArenas(Bench& bench);

// Memory that is faulted in once and serves one measurement after the other. Each part is larger
// than what a core keeps of a cache.
class KernelMemory {
 public:
  // nullptr, and a failed check, without an arena.
  static std::unique_ptr<KernelMemory> Make(Bench& bench);

  PageStore& arena() { return *arena_; }
  // Another arena of the same size, for pages that take turns with those of arena().
  PageStore& second_arena() { return *second_; }
  // Reads the next `bytes` of private huge pages.
  Side StreamReadSide(uint64_t bytes, uint32_t threads);

 private:
  KernelMemory(std::unique_ptr<PageStore> arena, std::unique_ptr<PageStore> second, uint64_t bytes)
      : arena_(std::move(arena)), second_(std::move(second)), plain_(bytes) {}
  std::unique_ptr<PageStore> arena_, second_;
  HugeBytes plain_;
  uint64_t next_ = 0, sum_ = 0;
  PairedStreamRead pair_;
};

// Pages of this shape; nothing, and a failed check, when they do not fit.
std::optional<KvPages> FillPages(Bench& bench, PageStore& store, const KvShape& shape);

// One length of the table, in us a token of all layers: f16, 8/4 and 4/4.
struct TableLength {
  uint32_t tokens = 0;
  double f16_us = 0, mixed_us = 0, four_us = 0;
};
std::vector<uint32_t> TableLengths(bool smoke);  // those of the source, unless smoke
// The shortest length from which on 8/4 is faster than f16 at every one measured; 0: there is none.
// Requires: ascending lengths.
uint32_t Crossover(const std::vector<TableLength>& lengths);

// The conversions and the overhead are measured on so many KV heads of so many channels.
inline constexpr uint32_t kHeads = 8, kDim = 128;
// The most that attention may differ from exact attention on the dequantized values, relative RMS.
inline constexpr double kPreciseError = 1e-3, kFastError = 1.8e-2;
// "attend 12.9 GB/s".
std::string RateText(const std::string& what, double bytes_per_s);

// Adds figures that have no target; with the targets alone they are a sentence beside them.
void Tell(Bench& bench, Row row);
// Two sides in turns, without a target: times, and how many times as fast the first one is.
void TellSpeedup(Bench& bench, const std::string& name, const Side& ours, const Side& other,
                 uint64_t rounds);

void KernelsBatch(Bench& bench, KernelMemory& memory);
void KernelsConvert(Bench& bench);
void KernelsNumbers(Bench& bench);
void KernelsTable(Bench& bench, KernelMemory& memory);
void KernelsOverhead(Bench& bench, KernelMemory& memory);
void KernelsFused(Bench& bench, KernelMemory& memory);
void KernelsDecode(Bench& bench, KernelMemory& memory);
void KernelsPrefill(Bench& bench, KernelMemory& memory);

}  // namespace prefixd::bench
