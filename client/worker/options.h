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
  std::string name = "prefix-worker";
  bool use_arena = true;  // read cached pages in prefixd's memory
  uint64_t staging_bytes = uint64_t{64} << 20;

  // Exactly one of model and synthetic is set.
  std::string model;
  std::string synthetic;
  uint32_t layers = 0;  // of the synthetic model; 0 = all

  // Exactly one is set.
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
  KvFormat kv_format;                // what kv_flags chose
  std::vector<KvFormat> kv_formats;  // that the space stores: kv_format last
  QuantizeRule quantize;             // which tokens are raw all the same
  std::string kv_warning;            // may be empty
  uint32_t max_kv_size = 0;          // 0 = all tokens are attended on
  std::string attention_flag;        // empty = by the format
  AttentionModes attention;
  std::string attention_reason;              // why it is that
  double verify_hits = 0;                    // share of them
  Durability durability = Durability::kRam;  // of what is stored at a request's end
  uint32_t threads = 1;
  bool json = false;
};

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // a request, or everything, failed
inline constexpr int kExitUsage = 2;   // the command line is wrong; nothing was done

// Fills `options`. An exit code when the program is done already: help was asked for (written to
// `out`), or the command line is refused (the reason and the choices go to `err`).
std::optional<int> ParseCommandLine(int argc, const char* const* argv, Options* options,
                                    std::ostream& out, std::ostream& err);

}  // namespace prefixd::worker
