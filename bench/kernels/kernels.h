// kernels: what quantize, dequantize, relayout and attention reach, one file a family. Each
// verifies first, then times beside its reference, adds rows, and judges what issue "kernels at
// memory speed" promises.
#pragma once
#include <memory>
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
  static std::unique_ptr<KernelMemory> Make(Bench& bench);

  PageStore& arena() { return *arena_; }
  PageStore& private_pages() { return *private_; }
  // Reads the next `bytes` of private huge pages.
  Side StreamReadSide(uint64_t bytes, uint32_t threads);
  uint64_t bytes() const { return plain_.size(); }

 private:
  KernelMemory(std::unique_ptr<PageStore> arena, uint64_t bytes);
  std::unique_ptr<PageStore> arena_, private_;
  HugeBytes plain_;
  uint64_t next_ = 0, sum_ = 0;
  PairedStreamRead pair_;
};

// One length of the table, in us a token of all layers: f16, 8/4 and 4/4.
struct TableLength {
  uint32_t tokens = 0;
  double f16_us = 0, mixed_us = 0, four_us = 0;
};
std::vector<uint32_t> TableLengths(bool smoke);  // those of the source, unless smoke
// The shortest length from which on 8/4 is faster than f16 at every one measured; 0: there is none.
// Requires: ascending lengths.
uint32_t Crossover(const std::vector<TableLength>& lengths);

// The most that attention may differ from exact attention on the dequantized values, relative RMS.
inline constexpr double kPreciseError = 1e-3, kFastError = 1.8e-2;
inline double ErrorLimit(kernels::AttentionMode mode) {
  return mode == kernels::AttentionMode::kPrecise ? kPreciseError : kFastError;
}

// "attend 12.9 GB/s".
std::string RateText(const std::string& what, double bytes_per_s);

// Adds figures that have no target; with the targets alone they are a sentence beside them.
void Tell(Bench& bench, Row row);

void KernelsBatch(Bench& bench, KernelMemory& memory);
void KernelsConvert(Bench& bench);
void KernelsNumbers(Bench& bench);
void KernelsError(Bench& bench);
void KernelsTable(Bench& bench);
void KernelsOverhead(Bench& bench);
void KernelsFused(Bench& bench, KernelMemory& memory);
void KernelsDecode(Bench& bench, KernelMemory& memory);
void KernelsPrefill(Bench& bench, KernelMemory& memory);

}  // namespace prefixd::bench
