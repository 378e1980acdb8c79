#include "client/cli/plan.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/size.h"
#include "base/status.h"

namespace prefixd::cli {
namespace {

using nlohmann::json;

constexpr uint64_t kMostPerField = 1'000'000;

// The number of the first of these fields that is there; 0 if none is one.
uint64_t NumberIn(const json& config, std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    const auto found = config.find(name);
    if (found == config.end() || !found->is_number_unsigned()) continue;
    const auto number = found->get<uint64_t>();
    if (number <= kMostPerField) return number;
  }
  return 0;
}

bool IsFullAttention(const json& config) {
  const auto types = config.find("layer_types");
  if (types == config.end() || !types->is_array()) return true;
  for (const json& type : *types) {
    if (type != "full_attention") return false;
  }
  return true;
}

absl::Status WritePlot(const std::string& path, const std::string& svg) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << svg;
  file.close();
  if (file.good()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--svg: cannot write ", path));
}

json HitsJson(const sizing::Hits& hits) {
  return {{"hit_rate", hits.Share(hits.tokens())},
          {"hit_tokens", hits.tokens()},
          {"ram_hit_tokens", hits.ram_tokens},
          {"ssd_hit_tokens", hits.ssd_tokens},
          {"ssd_written_tokens", hits.ssd_written_tokens}};
}

json CellJson(const sizing::PlanCell& cell, double tokens_per_s) {
  json of = HitsJson(cell.hits);
  of["ram_bytes"] = cell.ram_bytes;
  of["ssd_bytes"] = cell.ssd_bytes;
  if (tokens_per_s > 0) {
    of["prefill_seconds_saved"] = static_cast<double>(cell.hits.tokens()) / tokens_per_s;
  }
  return of;
}

}  // namespace

absl::StatusOr<uint64_t> BytesPerToken(const std::string& folder) {
  const std::string path = folder + "/config.json";
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::InvalidArgumentError(absl::StrCat("--model: cannot read ", path));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return absl::InvalidArgumentError(path + " is no JSON object");
  if (config.contains("text_config") && config["text_config"].is_object()) {
    config = json(config["text_config"]);
  }
  if (!IsFullAttention(config)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        ": its layers are not all of full attention, a token has no fixed number of bytes: "
        "say --bytes-per-token, as prefixctl spaces shows what a model takes"));
  }
  if (NumberIn(config, {"kv_lora_rank"}) > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     ": engines cache latent pages of this model (kv_lora_rank), or its K and V: "
                     "say --bytes-per-token, as prefixctl spaces shows what a model takes"));
  }
  const uint64_t layers = NumberIn(config, {"num_hidden_layers", "n_layer"});
  const uint64_t heads = NumberIn(config, {"num_attention_heads", "n_head"});
  const uint64_t kv_heads = NumberIn(config, {"num_key_value_heads", "num_attention_heads"});
  const uint64_t hidden = NumberIn(config, {"hidden_size", "n_embd"});
  uint64_t dim = NumberIn(config, {"head_dim"});
  if (dim == 0 && heads > 0) dim = hidden / heads;
  if (layers == 0 || kv_heads == 0 || dim == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " does not say layers, KV heads and head dimension: say --bytes-per-token"));
  }
  // transformers 5 writes "dtype", earlier ones "torch_dtype".
  const auto is_f32 = [&](const char* name) {
    const auto dtype = config.find(name);
    return dtype != config.end() && *dtype == "float32";
  };
  const uint64_t element = is_f32("dtype") || is_f32("torch_dtype") ? 4 : 2;
  // As a double: a configuration may say anything, and MakePlan refuses what is too much.
  const double bytes = 2.0 * static_cast<double>(layers) * static_cast<double>(kv_heads) *
                       static_cast<double>(dim) * static_cast<double>(element);
  return static_cast<uint64_t>(std::min(bytes, 1e15));
}

absl::StatusOr<std::string> RunPlan(const PlanRequest& asked, bool as_json) {
  PlanRequest request = asked;
  if (!request.model.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(request.plan.shape.bytes_per_token, BytesPerToken(request.model));
  }
  PREFIXD_ASSIGN_OR_RETURN(const sizing::ReadTrace read,
                           sizing::ReadTraceFile(request.path, request.trace));
  PREFIXD_ASSIGN_OR_RETURN(const sizing::Plan plan, sizing::MakePlan(read.trace, request.plan));
  const PlanInput input{request, read, plan};
  if (!request.svg.empty()) {
    PREFIXD_RETURN_IF_ERROR(WritePlot(request.svg, PlanSvg(input)));
  }
  return as_json ? PlanJson(input) : PlanView(input);
}

std::string PlanJson(const PlanInput& input) {
  const auto& [request, read, plan] = input;
  const double rate = request.prefill_tokens_per_s;
  json out = {{"requests", plan.requests},
              {"requested_tokens", plan.most.requested_tokens},
              {"lines", read.lines},
              {"bad_lines", read.bad_lines},
              {"trace_cut", read.cut},
              {"bytes_per_token", request.plan.shape.bytes_per_token},
              {"working_set_tokens", plan.working_set_tokens},
              {"working_set_bytes", plan.working_set_bytes},
              {"most_hit_rate", plan.most.Share(plan.most.tokens())},
              {"cells", json::array()},
              {"reached", json::array()},
              {"doubling", {CellJson(plan.before, rate), CellJson(plan.after, rate)}}};
  if (read.bad_lines > 0) {
    out["first_bad_line"] = read.first_bad_line;
    out["first_bad_line_why"] = read.first_why;
  }
  for (const sizing::PlanCell& cell : plan.cells) out["cells"].push_back(CellJson(cell, rate));
  for (const sizing::Plan::Reached& reached : plan.reached) {
    json line = {{"share", reached.share}};
    if (reached.ram_alone) line["ram_alone"] = CellJson(*reached.ram_alone, rate);
    if (reached.with_ssd) line["with_ssd"] = CellJson(*reached.with_ssd, rate);
    out["reached"].push_back(std::move(line));
  }
  return out.dump() + "\n";
}

}  // namespace prefixd::cli
