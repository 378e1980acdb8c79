// prefixd-bench-cuda: what client/cuda does on this machine's GPU, beside what the GPU can do.
#include <cstring>

#include "gpu.h"

namespace prefixd::bench {
namespace {

constexpr char kHelp[] =
    "usage: prefixd-bench-cuda [decode] [prefill] [convert] [load] [--json] [--targets] [--quick]\n"
    "Measures libprefixd_cuda on the first GPU; figures go to stderr as they come.\n"
    "  --json     prints GPU, clocks and figures as JSON\n"
    "  --targets  exits with 1 if a figure misses its target\n"
    "  --quick    fewer samples\n"
    "Exits with 77 where no GPU is.\n";

// Clocks while the GPU works, as the driver's tool tells them; "" where it is not there.
std::string ClocksNow() {
  std::string text;
  FILE* tool = popen(
      "nvidia-smi --query-gpu=clocks.sm,clocks.mem,driver_version --format=csv,noheader "
      "2>/dev/null",
      "r");
  if (tool == nullptr) return text;
  char line[256];
  if (std::fgets(line, sizeof(line), tool) != nullptr) text = line;
  pclose(tool);
  text.erase(std::remove(text.begin(), text.end(), '\n'), text.end());
  return text;
}

void PrintJson(const prefixd_cuda_facts& facts, const std::string& clocks, const Bench& bench) {
  std::printf("{\"gpu\": \"%s\", \"compute_capability\": \"%u.%u\", \"processors\": %u, ",
              facts.name, facts.major, facts.minor, facts.processors);
  std::printf("\"clocks\": \"%s\", \"figures\": [", clocks.c_str());
  const char* separator = "";
  for (const Figure& it : bench.figures) {
    std::printf("%s\n {\"workload\": \"%s\", \"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"",
                separator, it.workload.c_str(), it.name.c_str(), it.value, it.unit.c_str());
    if (it.target != 0) {
      std::printf(", \"%s\": %.6g, \"missed\": %s", it.most ? "at_most" : "at_least", it.target,
                  it.missed() ? "true" : "false");
    }
    std::printf("}");
    separator = ",";
  }
  std::printf("\n]}\n");
}

int Run(int count, char** arguments) {
  bool json = false, targets = false;
  std::vector<std::string> workloads;
  Bench bench;
  for (int i = 1; i < count; ++i) {
    const std::string it = arguments[i];
    if (it == "--json") {
      json = true;
    } else if (it == "--targets") {
      targets = true;
    } else if (it == "--quick") {
      bench.quick = true;
    } else if (it == "decode" || it == "prefill" || it == "convert" || it == "load") {
      workloads.push_back(it);
    } else {
      std::fputs(kHelp, it == "--help" ? stdout : stderr);
      return it == "--help" ? 0 : 2;
    }
  }
  bench.cuda = prefixd_cuda_open(nullptr);
  if (bench.cuda == nullptr) {
    std::fprintf(stderr, "prefixd-bench-cuda: skipped: %s\n", prefixd_cuda_last_error());
    return 77;
  }
  prefixd_cuda_facts facts = PREFIXD_INIT(prefixd_cuda_facts);
  Must(prefixd_cuda_describe(bench.cuda, &facts));
  Must(cudaStreamCreateWithFlags(&bench.stream, cudaStreamNonBlocking), "stream");
  const auto wanted = [&](const char* name) {
    return workloads.empty() || std::count(workloads.begin(), workloads.end(), name) > 0;
  };
  if (wanted("decode")) MeasureDecode(bench);
  if (wanted("prefill")) MeasurePrefill(bench);
  const std::string clocks = ClocksNow();
  std::fprintf(stderr, "%s, clocks and driver: %s\n", facts.name, clocks.c_str());
  if (wanted("convert")) MeasureConversion(bench);
  if (wanted("load")) MeasureLoad(bench);
  cudaStreamDestroy(bench.stream);
  prefixd_cuda_close(bench.cuda);
  if (json) PrintJson(facts, clocks, bench);
  const bool missed = std::any_of(bench.figures.begin(), bench.figures.end(),
                                  [](const Figure& it) { return it.missed(); });
  return targets && missed ? 1 : 0;
}

}  // namespace
}  // namespace prefixd::bench

int main(int count, char** arguments) { return prefixd::bench::Run(count, arguments); }
