#include "client/worker/model_config.h"

#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

#include "tests/worker/shipped_model.h"

namespace prefixd::worker {
namespace {

using nlohmann::json;

json Valid() { return json::parse(ReadTestFile(kShippedModel + "/config.json")); }

std::string Refusal(const json& config) {
  return std::string(ParseModelConfig(config.dump()).status().message());
}

TEST(ModelConfigTest, ShippedModelIsReadAsItIs) {
  const ModelConfig config = ShippedConfig();
  EXPECT_EQ(config.name, "model");
  EXPECT_EQ(config.vocab_size, 256U);
  EXPECT_EQ(config.hidden_size, 320U);
  EXPECT_EQ(config.intermediate_size, 896U);
  EXPECT_EQ(config.layers, 6U);
  EXPECT_EQ(config.query_heads, 8U);
  EXPECT_EQ(config.kv_heads, 2U);
  EXPECT_EQ(config.head_dim, 64U);
  EXPECT_EQ(config.max_tokens, 8192U);
  EXPECT_EQ(config.rms_norm_eps, 1e-5F);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_TRUE(config.end_tokens.empty());
  EXPECT_TRUE(config.byte_level());
}

TEST(ModelConfigTest, AbsentFieldsTakeTheDefaultsOfTransformers) {
  json config = Valid();
  for (const char* field : {"head_dim", "num_key_value_heads", "tie_word_embeddings", "rope_theta",
                            "rms_norm_eps", "max_position_embeddings", "hidden_act"}) {
    config.erase(field);
  }
  const absl::StatusOr<ModelConfig> model = ParseModelConfig(config.dump());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->head_dim, 40U);
  EXPECT_EQ(model->kv_heads, 8U);
  EXPECT_FALSE(model->tied_embeddings);
  EXPECT_EQ(model->rope_theta, 10000.0);
  EXPECT_EQ(model->rms_norm_eps, 1e-6F);
  EXPECT_EQ(model->max_tokens, 2048U);
}

TEST(ModelConfigTest, NewerFilesKeepThetaInRopeParameters) {
  json config = Valid();
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  EXPECT_EQ(ParseModelConfig(config.dump())->rope_theta, 500000.0);
  config["rope_parameters"]["rope_type"] = "llama3";
  EXPECT_EQ(Refusal(config),
            "model config: rope_type is \"llama3\", this worker reads \"default\"");
}

TEST(ModelConfigTest, EndTokensAreOneOrMany) {
  json config = Valid();
  config["eos_token_id"] = 10;
  EXPECT_EQ(ParseModelConfig(config.dump())->end_tokens, std::vector<uint32_t>{10});
  config["eos_token_id"] = {10, 13};
  EXPECT_EQ(ParseModelConfig(config.dump())->end_tokens, (std::vector<uint32_t>{10, 13}));
  config["eos_token_id"] = 256;
  EXPECT_EQ(Refusal(config), "model config: eos_token_id is 256, this worker reads ids below 256");
}

// Whatever would be computed wrongly is refused by name, not answered wrongly.
TEST(ModelConfigTest, UnsupportedArithmeticIsRefusedByName) {
  const std::vector<std::pair<std::string, json>> cases = {
      {"model_type", "qwen3"},
      {"hidden_act", "gelu"},
      {"attention_bias", true},
      {"mlp_bias", true},
      {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}},
      {"sliding_window", 4096},
      {"quantization_config", {{"bits", 4}}},
      {"partial_rotary_factor", 0.5},
      {"head_dim", 60},
      {"num_key_value_heads", 3},
      {"num_hidden_layers", 0},
      {"num_hidden_layers", -1},
      {"vocab_size", "many"},
      {"hidden_size", 1 << 30},
      {"rms_norm_eps", 0},
      {"rope_theta", -1}};
  for (const auto& [field, value] : cases) {
    json config = Valid();
    config[field] = value;
    const std::string refusal = Refusal(config);
    EXPECT_EQ(refusal.rfind("model config: " + field + " is " + value.dump() + ", this worker", 0),
              0U)
        << field << ": " << refusal;
  }
  json untyped = Valid();
  untyped.erase("model_type");
  EXPECT_EQ(Refusal(untyped), "model config: model_type is absent, this worker reads \"llama\"");
  json incomplete = Valid();
  incomplete.erase("hidden_size");
  EXPECT_EQ(Refusal(incomplete), "model config: hidden_size is absent, this worker reads a count");
}

TEST(ModelConfigTest, FalseAndNullStandForAbsent) {
  json config = Valid();
  config["rope_scaling"] = nullptr;
  config["sliding_window"] = nullptr;
  config["attention_bias"] = false;
  EXPECT_TRUE(ParseModelConfig(config.dump()).ok());
}

TEST(ModelConfigTest, WhatIsNotJsonOrNotThereIsSaid) {
  EXPECT_EQ(ParseModelConfig("{").status().message(), "model config: not a JSON object");
  EXPECT_EQ(ParseModelConfig("[]").status().message(), "model config: not a JSON object");
  const absl::Status absent = LoadModelConfig("/nonexistent").status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(absent.message(), "model config: cannot read /nonexistent/config.json");
}

}  // namespace
}  // namespace prefixd::worker
