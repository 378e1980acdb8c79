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
  config["rope_parameters"]["rope_type"] = "yarn";
  EXPECT_EQ(Refusal(config),
            "model config: rope_scaling.rope_type is \"yarn\", this worker reads \"default\", "
            "\"linear\" and \"llama3\"");
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
  const std::vector<std::pair<std::string, json>> cases = {{"model_type", "qwen3_moe"},
                                                           {"hidden_act", "gelu"},
                                                           {"attention_bias", true},
                                                           {"mlp_bias", true},
                                                           {"rope_scaling", "llama3"},
                                                           {"use_sliding_window", true},
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
  EXPECT_EQ(Refusal(untyped),
            "model config: model_type is absent, this worker reads \"llama\", \"qwen2\", "
            "\"qwen3\", \"gemma3_text\" and \"qwen3_next\"");
  json incomplete = Valid();
  incomplete.erase("hidden_size");
  EXPECT_EQ(Refusal(incomplete), "model config: hidden_size is absent, this worker reads a count");
}

TEST(ModelConfigTest, Llama3ScalingIsReadWithAllItsNumbers) {
  const ModelConfig config =
      LoadModelConfig(std::string(PREFIXD_TEST_DATA) + "/tiny/llama3").value();
  EXPECT_EQ(config.rope_scaling.type, RopeScaling::Type::kLlama3);
  EXPECT_EQ(config.rope_scaling.factor, 8);
  EXPECT_EQ(config.rope_scaling.low_frequency_factor, 1);
  EXPECT_EQ(config.rope_scaling.high_frequency_factor, 4);
  EXPECT_EQ(config.rope_scaling.original_tokens, 64U);
}

TEST(ModelConfigTest, HybridsSayWhichLayersSlideAndWhichKeepAState) {
  const std::string tiny = std::string(PREFIXD_TEST_DATA) + "/tiny/";
  const ModelConfig gemma = LoadModelConfig(tiny + "gemma3").value();
  for (uint32_t layer = 0; layer < 6; ++layer) {
    EXPECT_EQ(gemma.layer(layer).type, layer == 5 ? LayerType::kFull : LayerType::kSliding);
    EXPECT_EQ(gemma.layer(layer).window, layer == 5 ? 0U : 128U);
    EXPECT_EQ(gemma.layer(layer).local_rope, layer != 5);
  }
  const ModelConfig qwen = LoadModelConfig(tiny + "qwen3_next").value();
  for (uint32_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(qwen.layer(layer).type, layer == 3 ? LayerType::kFull : LayerType::kGatedDelta);
  }
  EXPECT_EQ(qwen.rotary_dim, 8U);
  EXPECT_EQ(qwen.delta.channels(), 128U);
  // Newer files name the layers one by one.
  json config = json::parse(ReadTestFile(tiny + "gemma3/config.json"));
  config["layer_types"] = {"full_attention",    "sliding_attention", "sliding_attention",
                           "sliding_attention", "sliding_attention", "full_attention"};
  const ModelConfig named = ParseModelConfig(config.dump()).value();
  EXPECT_EQ(named.layer(0).type, LayerType::kFull);
  EXPECT_EQ(named.layer(1).type, LayerType::kSliding);
  config["layer_types"][1] = "chunked_attention";
  EXPECT_NE(Refusal(config).find("layer_types is \"chunked_attention\""), std::string::npos);
}

// S2-08: mlx-lm's rotating cache keeps the first 4.
TEST(ModelConfigTest, MaxKvSizeLetsFullLayersSlideAndKeepsTheFirstFour) {
  ModelConfig config = ShippedConfig();
  ASSERT_TRUE(LimitContext(128, &config).ok());
  EXPECT_EQ(config.layer(0),
            (LayerShape{.type = LayerType::kSliding, .window = 124, .sink_tokens = 4}));
  ModelConfig gemma = LoadModelConfig(std::string(PREFIXD_TEST_DATA) + "/tiny/gemma3").value();
  ASSERT_TRUE(LimitContext(64, &gemma).ok());
  EXPECT_EQ(gemma.layer(0).window, 128U) << "slides already";
  EXPECT_EQ(gemma.layer(5).window, 60U);
  EXPECT_EQ(LimitContext(4, &config).message(),
            "--max-kv-size: 4, must be more than the 4 first tokens that are always kept");
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
