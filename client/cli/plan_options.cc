#include "client/cli/plan_options.h"

#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "base/status.h"
#include "client/cli/add_command.h"

namespace prefixd::cli {
namespace {

constexpr size_t kMostSizes = 64;

const std::map<std::string, sizing::LineKind>& Formats() {
  static const auto* const formats =
      new std::map<std::string, sizing::LineKind>{{"auto", sizing::LineKind::kNothing},
                                                  {"mooncake", sizing::LineKind::kHashes},
                                                  {"tokens", sizing::LineKind::kTokens},
                                                  {"text", sizing::LineKind::kText},
                                                  {"vllm-log", sizing::LineKind::kTokens}};
  return *formats;
}

absl::Status ReadSizes(const char* flag, const std::vector<std::string>& texts,
                       std::vector<uint64_t>* sizes) {
  if (texts.size() > kMostSizes) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": at most ", kMostSizes, " sizes"));
  }
  for (const std::string& text : texts) {
    const absl::StatusOr<base::Size> size = base::ParseSize(text == "off" ? "0" : text);
    if (!size.ok() || size->percent > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, ": \"", text, "\" is not a size like 512MiB or 20GiB"));
    }
    sizes->push_back(size->bytes);
  }
  return absl::OkStatus();
}

absl::Status ReadShare(const std::string& text, double* share) {
  *share = 0;
  if (text == "off") return absl::OkStatus();
  const absl::StatusOr<base::Size> size = base::ParseSize(text);
  if (!size.ok() || size->percent <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ssd-write-share: \"", text, "\" is not a share like 30%, or off"));
  }
  *share = size->percent / 100;
  return absl::OkStatus();
}

}  // namespace

void DeclarePlan(CLI::App& app, Options* options, PlanTexts* texts) {
  CLI::App* plan = AddCommand(
      app, options, Command::kPlan, "plan",
      "what hit rate which sizes of RAM and SSD would give, from a recorded trace",
      "FILE is JSON lines, which may be packed by zstd, or vLLM's log. A line has hash_ids (one "
      "for "
      "512\ntokens, as in Mooncake's traces), token ids (prompt_token_ids, input_ids, tokens, "
      "prompt) or text\n(prompt, messages). No prefixd is asked.\n"
      "Examples:\n"
      "  prefixctl plan trace.jsonl --bytes-per-token 131072\n"
      "  prefixctl plan vllm.log --model Llama-3-8B --ram 16GiB,64GiB --ssd 0,500GiB --svg "
      "plan.svg");
  PlanRequest& request = options->plan;
  plan->add_option("FILE", request.path, "the trace or log")->required();
  plan->add_option("--format", texts->format,
                   "auto (default), mooncake, tokens, text or vllm-log: other lines are left out")
      ->type_name("FORMAT");
  CLI::Option* model = plan->add_option("--model", request.model,
                                        "a model's folder: its config.json says how many bytes a "
                                        "token takes, unquantized")
                           ->type_name("PATH");
  plan->add_option("--bytes-per-token", texts->bytes_per_token,
                   "what a token takes in the KV cache, as 131072 or 60KiB")
      ->type_name("SIZE")
      ->excludes(model);
  plan->add_option("--block-tokens", request.plan.shape.block_tokens,
                   "tokens of a block, as prefixd's --block-tokens")
      ->check(CLI::IsMember({16u, 32u, 64u, 128u}))
      ->capture_default_str();
  plan->add_option("--ram", texts->ram, "budgets, as prefixd's --ram: 1GiB,4GiB")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("SIZES");
  plan->add_option("--ssd", texts->ssd, "budgets, as prefixd's --ssd: 0,100GiB")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("SIZES");
  plan->add_option("--ssd-write-share", texts->write_share, "as prefixd's setting")
      ->type_name("SHARE")
      ->capture_default_str();
  plan->add_option("--prefill-rate", request.prefill_tokens_per_s,
                   "tokens that your engine computes a second: shows the time saved")
      ->check(CLI::PositiveNumber)
      ->type_name("TOKENS");
  plan->add_option("--svg", request.svg, "write a plot to this file")->type_name("PATH");
}

absl::Status ReadPlan(const PlanTexts& texts, Options* options) {
  if (options->command != Command::kPlan) return absl::OkStatus();
  PlanRequest& request = options->plan;
  const auto format = Formats().find(texts.format);
  if (format == Formats().end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--format: \"", texts.format, "\" is none of auto, mooncake, tokens, text and vllm-log"));
  }
  request.trace.kind = format->second;
  request.trace.block_tokens = request.plan.shape.block_tokens;
  if (request.model.empty()) {
    std::vector<uint64_t> bytes;
    if (!texts.bytes_per_token.empty()) {
      PREFIXD_RETURN_IF_ERROR(ReadSizes("--bytes-per-token", {texts.bytes_per_token}, &bytes));
    }
    if (bytes.empty() || bytes[0] == 0) {
      return absl::InvalidArgumentError(
          "plan: say what a token takes, with --bytes-per-token or --model");
    }
    request.plan.shape.bytes_per_token = bytes[0];
  }
  PREFIXD_RETURN_IF_ERROR(ReadSizes("--ram", texts.ram, &request.plan.ram_bytes));
  PREFIXD_RETURN_IF_ERROR(ReadSizes("--ssd", texts.ssd, &request.plan.ssd_bytes));
  return ReadShare(texts.write_share, &request.plan.ssd_write_share);
}

}  // namespace prefixd::cli
