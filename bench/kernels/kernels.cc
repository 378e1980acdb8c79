#include "bench/kernels/kernels.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "bench/common/families.h"
#include "bench/common/machine.h"
#include "bench/common/shared_daemon.h"
#include "bench/common/workloads.h"
#include "bench/kernels/huge_tmpfs.h"
#include "kernels/attention.h"

namespace prefixd::bench {

std::vector<KernelFormat> KernelFormats() {
  const quant::TensorFormat raw = quant::RawFormat(quant::Dtype::kF16);
  const auto mlx = [](uint8_t bits) {
    return quant::Tiled(quant::MlxAffineFormat(bits, 64, quant::Dtype::kF16));
  };
  const quant::TensorFormat q8_0 = quant::Tiled(quant::GgmlFormat(quant::Codec::kQ8_0));
  const quant::TensorFormat q4_0 = quant::Tiled(quant::GgmlFormat(quant::Codec::kQ4_0));
  return {{"f16", {raw, raw}, 0.60},
          {"8/8 tiled", {mlx(8), mlx(8)}, 0.50},
          {"8/4 tiled", {mlx(8), mlx(4)}, 0.50},
          {"4/4 tiled", {mlx(4), mlx(4)}, 0.40},
          {"q8_0 tiled", {q8_0, q8_0}, 0.48},
          {"q4_0 tiled", {q4_0, q4_0}, 0.38}};
}

KernelFormat RowsOf(KernelFormat format) {
  format.name = format.name.substr(0, format.name.find(' ')) + " rows";
  format.format.key.layout = format.format.value.layout = quant::Layout::kRows;
  return format;
}

const KernelFormat& FormatNamed(const std::vector<KernelFormat>& formats, const std::string& name) {
  return *std::find_if(formats.begin(), formats.end(),
                       [&](const KernelFormat& format) { return format.name == name; });
}

std::string FolderForArenas(Bench& bench) {
  if (!bench.arena_folder().empty()) return bench.arena_folder();
  const absl::StatusOr<std::string> mounted = MountHugeTmpfs();
  if (mounted.ok()) return *mounted;
  bench.Note(absl::StrCat("arenas on /dev/shm: ", std::string(mounted.status().message())));
  return "/dev/shm";
}

std::unique_ptr<KernelMemory> KernelMemory::Make(Bench& bench) {
  constexpr uint64_t kParts = 3;
  const uint64_t wanted = bench.Parameter("cold_bytes", 24 * kMiB, 640 * kMiB, 768 * kMiB);
  const uint64_t bytes =
      std::max(FittingBytes(bench, kParts * wanted) / kParts / kMiB * kMiB, 24 * kMiB);
  const std::string folder = FolderForArenas(bench);
  auto arena = PageStore::Make(folder, bytes), second = PageStore::Make(folder, bytes);
  if (!bench.Check(arena.ok(), arena.status().ToString()) ||
      !bench.Check(second.ok(), second.status().ToString())) {
    return nullptr;
  }
  return std::unique_ptr<KernelMemory>(
      new KernelMemory(*std::move(arena), *std::move(second), bytes));
}

std::optional<KvPages> FillPages(Bench& bench, PageStore& store, const KvShape& shape) {
  auto pages = KvPages::Fill(store, shape);
  if (!bench.Check(pages.ok(), pages.status().ToString())) return std::nullopt;
  return *std::move(pages);
}

Side KernelMemory::StreamReadSide(uint64_t bytes, uint32_t threads) {
  constexpr uint64_t kStep = 1024;
  const uint64_t most = plain_.size();
  bytes = std::min(bytes / kStep * kStep, most);
  return {"stream read", bytes, [this, bytes, most, threads] {
            if (next_ + bytes > most) next_ = 0;
            const std::byte* const from = plain_.data() + next_;
            sum_ += threads == 1 ? StreamRead(from, bytes) : pair_.Read(from, bytes);
            next_ += bytes;
          }};
}

std::string RateText(const std::string& what, double bytes_per_s) {
  return absl::StrCat(what, " ", RateText(bytes_per_s, 1e6));
}

void Tell(Bench& bench, Row row) {
  if (bench.targets_only()) {
    std::string text = row.name + ":";
    for (const Figure& figure : row.figures) absl::StrAppend(&text, " ", ToText(figure), ",");
    text.back() = ';';
    bench.Note(text + " no target");
  }
  bench.Add(std::move(row));
}

void TellSpeedup(Bench& bench, const std::string& name, const Side& ours, const Side& other,
                 uint64_t rounds) {
  const Rounds seen = TakeTurns({ours, other}, rounds);
  Tell(bench, {name,
               {{"median_us", seen.median_us(0)},
                {other.name + "_us", seen.median_us(1)},
                {"speedup_ratio", seen.median_us(1) / seen.median_us(0)},
                {"spread_percent", seen.RateSpreadPercent(0, 1)}}});
}

void RunKernels(Bench& bench) {
  bench.Note(absl::StrCat("kernels run on ", kernels::AttentionTarget(), ", fast decode is ",
                          kernels::FastDecodeOrder()));
  const std::unique_ptr<KernelMemory> memory = KernelMemory::Make(bench);
  if (memory == nullptr) return;
  std::vector<Family> families = {{"decode", [&] { KernelsDecode(bench, *memory); }},
                                  {"batch", [&] { KernelsBatch(bench, *memory); }},
                                  {"prefill", [&] { KernelsPrefill(bench, *memory); }},
                                  {"convert", [&] { KernelsConvert(bench); }},
                                  {"numbers", [&] { KernelsNumbers(bench); }},
                                  {"overhead", [&] { KernelsOverhead(bench, *memory); }},
                                  {"fused", [&] { KernelsFused(bench, *memory); }}};
  if (!bench.targets_only()) families.push_back({"table", [&] { KernelsTable(bench, *memory); }});
  RunFamilies(bench, families);
}

}  // namespace prefixd::bench
