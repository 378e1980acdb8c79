// The worker's command line.
#pragma once
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "client/worker/kv_format.h"
#include "prefixd/attention.h"
#include "prefixd/client.h"

namespace prefixd::worker {

struct Options {
  std::string server = "unix:///run/prefixd/prefixd.sock";  // "none" = no cache
  std::string name = "prefixd-worker";
  bool use_arena = true;  // read cached pages in prefixd's memory
  uint64_t staging_bytes = uint64_t{64} << 20;

  // Exactly one of model and synthetic is set.
  std::string model;
  std::string synthetic;
  uint32_t layers = 0;  // layers of the synthetic model; 0 = all

  // Exactly one of these is set.
  std::optional<std::string> prompt;
  std::string prompt_file;
  std::string prompts_file;  // "-" = standard input
  std::vector<uint32_t> tokens;

  uint32_t max_tokens = 64;
  double temperature = 0;
  uint64_t seed = 1;
  KvFlags kv_flags;
  bool kv_cache_quantization = false;  // vllm-mlx's flags
  std::string kv_cache_bits, kv_cache_group_size;
  KvFormat kv_format;                // chosen by kv_flags
  std::vector<KvFormat> kv_formats;  // formats that the space stores, kv_format last
  QuantizeRule quantize;             // which tokens stay raw
  std::string kv_warning;            // may be empty
  uint32_t max_kv_size = 0;          // 0 = attention sees all tokens
  std::string attention_flag;        // empty = the format decides
  AttentionModes attention;
  std::string attention_reason;              // why `attention` is so
  double verify_hits = 0;                    // share of hits to verify
  Durability durability = Durability::kRam;  // durability of what is stored at a request's end
  uint32_t threads = 1;
  std::optional<int32_t> gpu;  // where the model runs; without it, on the CPU
  bool json = false;
};

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // a request, or everything, failed
// The command line is wrong, or names a device that is not there; nothing was done.
inline constexpr int kExitUsage = 2;

// Fills `options`. Returns an exit code if the program is done: help was asked for (written to
// `out`), or the command line is refused (`err` gets the reason and the choices).
std::optional<int> ParseCommandLine(int argc, const char* const* argv, Options* options,
                                    std::ostream& out, std::ostream& err);

}  // namespace prefixd::worker
