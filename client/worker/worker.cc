#include "client/worker/worker.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"

#include "base/size.h"
#include "base/status.h"
#include "client/worker/cache_space.h"
#include "client/worker/generate.h"
#include "client/worker/gpu_library.h"
#include "client/worker/model.h"
#include "client/worker/prompts.h"
#include "client/worker/report.h"
#include "client/worker/synthetic.h"
#include "client/worker/verify.h"

namespace prefixd::worker {
namespace {

absl::StatusOr<ModelConfig> ReadConfig(const Options& options) {
  PREFIXD_ASSIGN_OR_RETURN(ModelConfig config,
                           options.synthetic.empty()
                               ? LoadModelConfig(options.model)
                               : SyntheticConfig(options.synthetic, options.layers));
  if (options.max_kv_size > 0) {
    PREFIXD_RETURN_IF_ERROR(LimitContext(options.max_kv_size, &config));
  }
  return config;
}

absl::StatusOr<Weights> ReadWeights(const Options& options, const ModelConfig& config) {
  if (!options.synthetic.empty()) return SyntheticWeights(config);
  return LoadWeights(options.model, config);
}

// Returns empty digests without prefixd: nobody compares them, and those of a big checkpoint take a
// while.
absl::StatusOr<ModelIdentity> ReadIdentity(const Options& options, const ModelConfig& config) {
  if (!options.synthetic.empty()) return IdentifySynthetic(config);
  if (options.server == "none") return ModelIdentity{};
  return IdentifyCheckpoint(options.model, config);
}

// Returns " (1 full, 5 sliding)", or "" if all layers are full.
std::string LayersText(const ModelConfig& config) {
  uint32_t full = 0, sliding = 0, delta = 0;
  for (const LayerShape& shape : config.layer_shapes) {
    full += shape.type == LayerType::kFull ? 1 : 0;
    sliding += shape.type == LayerType::kSliding ? 1 : 0;
    delta += shape.type == LayerType::kGatedDelta ? 1 : 0;
  }
  if (sliding + delta == 0) return "";
  std::string text = absl::StrCat(" (", full, " full");
  if (sliding > 0) absl::StrAppend(&text, ", ", sliding, " sliding");
  if (delta > 0) absl::StrAppend(&text, ", ", delta, " recurrent");
  return text + ")";
}

std::string DescribeModel(const ModelConfig& config) {
  return absl::StrCat(config.name, ", ", config.layers, " layers", LayersText(config), ", hidden ",
                      config.hidden_size, ", heads ", config.query_heads, "/", config.kv_heads,
                      " x ", config.head_dim, ", vocabulary ", config.vocab_size);
}

std::string KvText(const Options& options) {
  std::string text = Describe(options.kv_format);
  if (!options.quantize.mixes()) return text;
  absl::StrAppend(&text, ", but ", Describe(options.kv_formats.front()));
  if (options.quantize.start > 0) absl::StrAppend(&text, " up to token ", options.quantize.start);
  if (options.quantize.min_tokens > 0) {
    absl::StrAppend(&text, options.quantize.start > 0 ? " and" : "", " in prompts of fewer than ",
                    options.quantize.min_tokens, " tokens");
  }
  return text;
}

std::string ArenaText(const ArenaInfo& arena) {
  if (arena.data == nullptr) return absl::StrCat("no: ", arena.why_not);
  return absl::StrCat("cached pages are read in place; staging ",
                      base::FormatBytes(arena.staging_bytes));
}

std::string DeviceText(const Options& options, const Device* device) {
  if (device == nullptr) return absl::StrCat("cpu, ", options.threads, " threads");
  const DeviceFacts& facts = device->facts();
  return absl::StrCat(facts.kind, ": ", facts.name, ", products by ", facts.products);
}

void PrintSetup(const Options& options, const ModelConfig& config, const CacheSpace& cache,
                const Device* device, std::ostream& err) {
  err << "model    " << DescribeModel(config) << "\n"
      << "kv       " << KvText(options) << ", " << cache.space.payload_bytes_per_token()
      << " bytes per token, blocks of " << cache.space.block_tokens() << " tokens\n"
      << "attend   " << Describe(options.attention) << ": " << options.attention_reason << "\n"
      << "device   " << DeviceText(options, device) << "\n"
      << "cache    " << (cache.why_alone.empty() ? options.server : "none: " + cache.why_alone)
      << "\n"
      << "arena    " << ArenaText(cache.client.arena()) << "\n";
  if (options.max_kv_size > 0) {
    err << "context  the first " << kKeptTokens << " and the last "
        << options.max_kv_size - kKeptTokens << " tokens, "
        << (options.kv_flags.bits.empty() ? "raw" : "quantized: --max-kv-size holds with --kv-bits")
        << "\n";
  }
  if (!options.kv_warning.empty()) err << "warning  " << options.kv_warning << "\n";
  err << std::flush;
}

void PrintFailure(const Options& options, const std::string& id, const absl::Status& error,
                  std::ostream& out, std::ostream& err) {
  if (options.json) {
    out << JsonError(id, error) << std::endl;
  } else {
    err << "request" << (id.empty() ? "" : " " + id) << ": " << error.message() << std::endl;
  }
}

// Returns true if every request was answered.
bool AnswerAll(const Options& options, PromptSource& prompts, Model& model, CacheSpace& cache,
               std::ostream& out, std::ostream& err) {
  bool all_answered = true;
  HitSampler sampler(options.verify_hits, options.seed);
  uint64_t hits = 0, verified = 0, wrong = 0;
  for (;;) {
    const absl::StatusOr<std::optional<Prompt>> prompt = prompts.Next();
    if (prompt.ok() && !prompt->has_value()) break;
    const std::string id = prompt.ok() ? (*prompt)->id : "";
    absl::StatusOr<Answer> answer = !prompt.ok() ? absl::StatusOr<Answer>(prompt.status())
                                                 : Generate(model, cache.space, **prompt,
                                                            {.max_tokens = options.max_tokens,
                                                             .temperature = options.temperature,
                                                             .seed = options.seed,
                                                             .quantize = options.quantize,
                                                             .verify_hit = sampler.Next(),
                                                             .durability = options.durability});
    if (answer.ok()) {
      ArenaInfo arena = cache.client.arena();
      answer->arena = arena.data != nullptr;
      answer->why_no_arena = std::move(arena.why_not);
    }
    if (answer.ok() && options.server == "none") {  // no cache was asked for: this is no error
      answer->match.status = {};
      answer->store_error = "";
    }
    if (!answer.ok()) {
      all_answered = false;
      PrintFailure(options, id, answer.status(), out, err);
    } else if (options.json) {
      out << JsonReport(*answer, model.config()) << std::endl;
    } else {
      out << HumanReport(*answer, model.config()) << std::endl;
    }
    if (answer.ok()) {
      hits += answer->used_tokens > 0 ? 1 : 0;
      verified += answer->verified ? 1 : 0;
      wrong += answer->verified && answer->verified->wrong_blocks > 0 ? 1 : 0;
    }
  }
  if (options.verify_hits > 0) {
    err << "verified " << verified << " of " << hits << " hits, " << wrong << " with wrong pages"
        << std::endl;
  }
  return all_answered;
}

absl::StatusOr<bool> Run(const Options& options, const std::shared_ptr<Device>& device,
                         std::ostream& out, std::ostream& err) {
  PREFIXD_ASSIGN_OR_RETURN(const ModelConfig config, ReadConfig(options));
  PREFIXD_RETURN_IF_ERROR(CheckKvFormat(options.kv_format, config.head_dim));
  PREFIXD_ASSIGN_OR_RETURN(PromptSource prompts, PromptSource::Open(options, config));
  PREFIXD_ASSIGN_OR_RETURN(Weights weights, ReadWeights(options, config));
  PREFIXD_ASSIGN_OR_RETURN(const ModelIdentity identity, ReadIdentity(options, config));
  PREFIXD_ASSIGN_OR_RETURN(
      CacheSpace cache,
      OpenCacheSpace(options, MakeSpaceSpec(config, identity, options.kv_formats)));
  PrintSetup(options, config, cache, device.get(), err);
  Model model(config, std::move(weights),
              {.formats = options.kv_formats,
               .threads = options.threads,
               .attention = options.attention,
               .device = device});
  PREFIXD_RETURN_IF_ERROR(WarmUp(model, cache.space));
  return AnswerAll(options, prompts, model, cache, out, err);
}

}  // namespace

int RunWorker(const Options& options, std::ostream& out, std::ostream& err) {
  std::shared_ptr<Device> device;
  if (options.gpu.has_value()) {
    absl::StatusOr<std::shared_ptr<Device>> gpu = OpenGpu(*options.gpu);
    if (!gpu.ok()) {
      err << "prefixd-worker: --device cuda: " << gpu.status().message() << std::endl;
      return kExitUsage;
    }
    device = *std::move(gpu);
  }
  const absl::StatusOr<bool> all_answered = Run(options, device, out, err);
  if (!all_answered.ok()) {
    err << "prefixd-worker: " << all_answered.status().message() << std::endl;
    return kExitFailed;
  }
  return *all_answered ? kExitOk : kExitFailed;
}

}  // namespace prefixd::worker
