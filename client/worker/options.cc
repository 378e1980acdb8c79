#include "client/worker/options.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"

#include "base/size.h"
#include "base/status.h"
#include "base/version.h"
#include "client/worker/model_config.h"
#include "client/worker/synthetic.h"
#include "completion/completion.h"
#include "os/machine.h"

namespace prefixd::worker {
namespace {

constexpr uint32_t kMaxThreads = 1024;
constexpr uint32_t kMaxAnswerTokens = 1 << 20;
constexpr uint32_t kMaxContextTokens = 1 << 24;
constexpr uint32_t kLeastTokensOfVllm = 256;
constexpr const char* kAbout =
    "prefixd-worker: runs a checkpoint of the Llama, Qwen or Gemma family on prompts and keeps its "
    "KV cache in prefixd, so that\n"
    "what any worker of the same model has read once need not be computed again.\n\n"
    "  prefixd-worker --model tests/data/model --kv-bits 8 --prompt 'In the beginning'\n";

void DeclareModel(CLI::App& app, Options* options) {
  CLI::Option_group* which = app.add_option_group("Model", "one of --model and --synthetic");
  which->add_option("--model", options->model, "folder with config.json and *.safetensors");
  which
      ->add_option("--synthetic", options->synthetic,
                   "random weights of a known geometry; takes token ids")
      ->check(CLI::IsMember({"llama3-8b", "qwen3-0.6b"}));
  which->require_option(1);
  app.add_option("--layers", options->layers,
                 "layers of the synthetic model (default: as many as the real one has)")
      ->check(CLI::Range(1U, kMaxSyntheticLayers))
      ->needs("--synthetic");
}

void DeclarePrompts(CLI::App& app, Options* options) {
  CLI::Option_group* which = app.add_option_group("Prompt", "one of these");
  which->add_option("--prompt", options->prompt, "text, for models whose tokens are bytes");
  which->add_option("--prompt-file", options->prompt_file, "the same from a file, byte for byte");
  which->add_option("--prompts-file", options->prompts_file,
                    "many requests, one JSON object a line: {\"id\": ..., \"prompt\": \"text\"} or "
                    "{\"id\": ..., \"tokens\": [1, 2, 3]}; - reads them from standard input");
  which->add_option("--tokens", options->tokens, "token ids: 1,2,3")->delimiter(',');
  which->require_option(1);
}

void DeclareAnswer(CLI::App& app, Options* options) {
  app.add_option("--max-tokens", options->max_tokens, "tokens to generate for each prompt")
      ->check(CLI::Range(1U, kMaxAnswerTokens))
      ->capture_default_str();
  app.add_option("--temperature", options->temperature, "0 = greedy")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--seed", options->seed, "of sampling, for each request anew")
      ->capture_default_str();
  app.add_flag("--json", options->json, "one JSON object a request on standard output");
}

void DeclareQuantization(CLI::App& app, Options* options) {
  app.add_option("--kv-bits", options->kv_flags.bits,
                 "quantize the KV cache: 2, 3, 4, 5, 6 or 8 bits, or keys,values as in 8,4 "
                 "(default: raw, not quantized)");
  app.add_option("--kv-group-size", options->kv_flags.group_size,
                 "values that share a scale: 32, 64 or 128, or keys,values as in 64,32; divides "
                 "head_dim (default: 64)");
  app.add_option("--kv-dtype", options->kv_flags.dtype,
                 "f32, f16 or bf16: of raw values (default: f32, which changes no answer), with "
                 "--kv-bits of scales and biases (default: f16)");
  app.add_option("--kv-rotation", options->kv_flags.rotation,
                 "none or hadamard: turn K and V before they are quantized, which spreads outliers "
                 "(default: none)");
  app.add_option("--kv-layout", options->kv_flags.layout,
                 "rows or tiled: how pages hold quantized values; tiled where the format has it is "
                 "read faster (default: tiled)");
  app.add_option("--quantized-kv-start", options->kv_flags.quantized_start,
                 "with --kv-bits: blocks that end at or before so many tokens stay raw, of "
                 "--kv-dtype (default: 0)")
      ->check(CLI::Range(0U, kMaxContextTokens));
  app.add_option("--min-quantize-tokens,--kv-cache-min-quantize-tokens",
                 options->kv_flags.min_tokens,
                 "with --kv-bits: the KV of prompts shorter than that stays raw, until the answer "
                 "goes beyond it; 0 = always quantized (default: 0, as attention reads quantized "
                 "pages as they are; 256 with --kv-cache-quantization)")
      ->check(CLI::Range(0U, kMaxContextTokens));
  CLI::Option* on = app.add_flag("--kv-cache-quantization", options->kv_cache_quantization,
                                 "as vllm-mlx: --kv-bits 8 --min-quantize-tokens 256");
  app.add_option("--kv-cache-quantization-bits", options->kv_cache_bits, "4 or 8 (default: 8)")
      ->check(CLI::IsMember({"4", "8"}))
      ->needs(on);
  app.add_option("--kv-cache-quantization-group-size", options->kv_cache_group_size,
                 "as --kv-group-size (default: 64)")
      ->needs(on);
}

// Returns the GPU's number, or nothing for the CPU.
absl::StatusOr<std::optional<int32_t>> ParseDevice(const std::string& device) {
  if (device == "cpu") return std::nullopt;
  if (device == "cuda") return 0;
  int32_t number = 0;
  if (device.starts_with("cuda:") && absl::SimpleAtoi(device.substr(5), &number) && number >= 0) {
    return number;
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", device, "\", choose cpu, cuda or cuda:N"));
}

void DeclareCache(CLI::App& app, Options* options) {
  app.add_option("--server", options->server,
                 "where prefixd listens: unix:///path, 127.0.0.1:port, or none")
      ->capture_default_str();
  app.add_option("--name", options->name, "of this worker, for prefixd's lists")
      ->capture_default_str();
  app.add_flag("!--no-arena", options->use_arena,
               "copy cached pages instead of reading them in prefixd's memory");
  app.add_option_function<std::string>(
         "--staging",
         [options](const std::string& text) {
           const absl::StatusOr<base::Size> size = base::ParseSize(text);
           if (!size.ok() || size->percent > 0) {
             throw CLI::ValidationError("--staging", "a size, 64MiB for example");
           }
           options->staging_bytes = size->bytes;
         },
         "memory shared with prefixd to quantize into; 0 = send pages instead (default: 64MiB)")
      ->type_name("SIZE");
  DeclareQuantization(app, options);
  app.add_option("--max-kv-size", options->max_kv_size,
                 "layers that attend on every token see the first 4 and the last SIZE - 4 only, as "
                 "a rotating cache of SIZE tokens holds them; works with --kv-bits too (default: "
                 "every token)")
      ->check(CLI::Range(kKeptTokens + 1, kMaxContextTokens));
  app.add_option("--attention", options->attention_flag,
                 "fast or precise: how prompts and answers attend on quantized pages (default: "
                 "prompts precise, answers as the format's own error allows)")
      ->check(CLI::IsMember({"fast", "precise"}));
  app.add_option("--verify-hits", options->verify_hits,
                 "share of hits, 0 to 1, that are computed again after their answer and compared "
                 "with what the cache gave; reported, changes no answer")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--durability",
         [options](const std::string& level) {
           options->durability = level == "ssd" ? Durability::kSsd : Durability::kRam;
         },
         "ram or ssd: where what is stored stands when a request ends; ssd waits for a synced "
         "write "
         "(default: ram)")
      ->check(CLI::IsMember({"ram", "ssd"}));
  app.add_option_function<std::string>(
         "--device",
         [options](const std::string& device) {
           const absl::StatusOr<std::optional<int32_t>> gpu = ParseDevice(device);
           if (!gpu.ok()) {
             throw CLI::ValidationError("--device", std::string(gpu.status().message()));
           }
           options->gpu = *gpu;
         },
         "cpu, cuda or cuda:N: where the model runs; cuda wants libprefixd_worker_cuda.so, an "
         "NVIDIA GPU and cuBLAS (default: cpu)")
      ->type_name("DEVICE");
  app.add_option("--threads", options->threads,
                 "for products and attention; answers are reproducible for one number of threads")
      ->check(CLI::Range(1U, kMaxThreads))
      ->capture_default_str();
}

// Translates vllm-mlx's flags to those of mlx-lm.
absl::Status TakeVllmFlags(Options* options) {
  if (!options->kv_cache_quantization) return absl::OkStatus();
  KvFlags& flags = options->kv_flags;
  if (!flags.bits.empty()) {
    return absl::InvalidArgumentError(
        "--kv-cache-quantization: with --kv-bits, choose one of both");
  }
  flags.bits = options->kv_cache_bits.empty() ? "8" : options->kv_cache_bits;
  flags.group_size = options->kv_cache_group_size;
  if (!flags.min_tokens.has_value()) flags.min_tokens = kLeastTokensOfVllm;
  return absl::OkStatus();
}

// Checks what CLI11 cannot, and sets the options that follow from the flags.
absl::Status Check(Options* options) {
  if (options->server != "none" && options->server.rfind("unix:", 0) != 0 &&
      options->server.find(':') == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("--server: \"", options->server,
                     "\", choose unix:///path/to/prefixd.sock, 127.0.0.1:port or none"));
  }
  PREFIXD_RETURN_IF_ERROR(TakeVllmFlags(options));
  PREFIXD_ASSIGN_OR_RETURN(KvChoice choice, ChooseKvFormat(options->kv_flags));
  options->kv_format = choice.format;
  options->kv_formats = choice.Ladder();
  options->quantize = choice.rule;
  options->kv_warning = choice.warning;
  const AttentionChoice attention = ChooseAttention(choice.format);
  options->attention = attention.modes;
  options->attention_reason = attention.reason;
  if (!options->attention_flag.empty()) {
    options->attention = {};
    if (options->attention_flag == "fast") {
      options->attention = {.prefill = AttendMode::kFastPrefill, .decode = AttendMode::kFast};
    }
    options->attention_reason = "as told";
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<int> ParseCommandLine(int argc, const char* const* argv, Options* options,
                                    std::ostream& out, std::ostream& err) {
  options->threads = std::min(os::UsableCpus(""), kMaxThreads);
  CLI::App app{kAbout, "prefixd-worker"};
  app.set_version_flag("--version", std::string("prefixd-worker ") + kVersion);
  DeclareModel(app, options);
  DeclarePrompts(app, options);
  DeclareAnswer(app, options);
  DeclareCache(app, options);
  completion::AddTo(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error, out, err);
    return code == 0 ? kExitOk : kExitUsage;
  }
  const absl::Status checked = Check(options);
  if (checked.ok()) return std::nullopt;
  err << checked.message() << "\nRun with --help for more information.\n";
  return kExitUsage;
}

}  // namespace prefixd::worker
