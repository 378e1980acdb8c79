// Checkpoints in the shapes that Hugging Face models come in, made from the shipped one.
#include "client/worker/weights.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "nlohmann/json.hpp"

#include "interop/safetensors.h"
#include "quant/codec.h"
#include "tests/worker/shipped_model.h"

namespace prefixd::worker {
namespace {

using nlohmann::json;

struct StoredTensor {
  std::string dtype = "F32";
  std::vector<uint64_t> shape;
  std::string bytes;
};
using StoredTensors = std::map<std::string, StoredTensor>;

StoredTensor Store(const interop::Tensor& tensor, quant::Dtype dtype) {
  const size_t count = tensor.bytes.size() / 2;  // the shipped model is bf16
  std::vector<float> values(count);
  quant::WidenToFloat(quant::Dtype::kBf16, tensor.bytes.data(), count, values.data());
  StoredTensor stored{.dtype = dtype == quant::Dtype::kF16 ? "F16" : "F32",
                      .shape = tensor.shape,
                      .bytes = std::string(count * quant::DtypeBytes(dtype), '\0')};
  quant::NarrowFromFloat(dtype, values.data(), count,
                         reinterpret_cast<std::byte*>(stored.bytes.data()));
  return stored;
}

void WriteSafetensors(const std::string& path, const StoredTensors& tensors) {
  json header;
  uint64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {at, at + tensor.bytes.size()}}};
    at += tensor.bytes.size();
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << text;
  for (const auto& [name, tensor] : tensors) file << tensor.bytes;
}

// A folder of its own for every test, gone after it.
class WeightsTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "/weights_test_" +
           testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(dir_);
    absl::StatusOr<interop::Checkpoint> checkpoint = interop::Checkpoint::Open(kShippedModel);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    for (const interop::Tensor& tensor : checkpoint->tensors()) {
      // Norm weights lie where f16 holds every bf16 value.
      const bool norm = tensor.name.ends_with("norm.weight");
      tensors_[tensor.name] = Store(tensor, norm ? quant::Dtype::kF16 : quant::Dtype::kF32);
    }
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::string LoadError() const {
    return std::string(LoadWeights(dir_, ShippedConfig()).status().message());
  }

  std::string dir_;
  StoredTensors tensors_;
};

std::vector<float> LogitsOf(const ModelConfig& config, Weights weights) {
  Rig rig(config, std::move(weights), Raw(Dtype::kF32));
  const std::vector<uint32_t> tokens = HeldOutTokens(40);
  Sequence sequence = rig.cache.space.Begin(tokens);
  rig.Prefill(sequence, tokens, 0, 40);
  return rig.Logits(39);
}

TEST_F(WeightsTest, ShardedUntiedF32AndF16GiveTheLogitsOfTiedBf16) {
  tensors_["lm_head.weight"] = tensors_["model.embed_tokens.weight"];
  json index;
  StoredTensors shards[2];
  for (const auto& [name, tensor] : tensors_) {
    const size_t shard = std::hash<std::string>()(name) % 2;
    shards[shard][name] = tensor;
    index["weight_map"][name] = shard == 0 ? "model-1.safetensors" : "model-2.safetensors";
  }
  WriteSafetensors(dir_ + "/model-1.safetensors", shards[0]);
  WriteSafetensors(dir_ + "/model-2.safetensors", shards[1]);
  std::ofstream(dir_ + "/model.safetensors.index.json") << index.dump();

  ModelConfig untied = ShippedConfig();
  untied.tied_embeddings = false;
  absl::StatusOr<Weights> weights = LoadWeights(dir_, untied);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_NE(weights->head.rows->values.data(), nullptr);
  const std::vector<float> logits = LogitsOf(untied, *std::move(weights));
  EXPECT_EQ(logits, LogitsOf(ShippedConfig(), *LoadWeights(kShippedModel, ShippedConfig())));
}

TEST_F(WeightsTest, AnUntiedHeadIsReadFromItsOwnTensor) {
  StoredTensor head = tensors_["model.embed_tokens.weight"];
  std::fill(head.bytes.begin(), head.bytes.end(), '\0');
  tensors_["lm_head.weight"] = head;
  WriteSafetensors(dir_ + "/model.safetensors", tensors_);
  ModelConfig untied = ShippedConfig();
  untied.tied_embeddings = false;
  const std::vector<float> zeros(256, 0.0F);
  EXPECT_EQ(LogitsOf(untied, *LoadWeights(dir_, untied)), zeros);
  EXPECT_NE(LogitsOf(ShippedConfig(), *LoadWeights(dir_, ShippedConfig())), zeros);
}

TEST_F(WeightsTest, MissingTensorsAreNamed) {
  tensors_.erase("model.layers.3.mlp.up_proj.weight");
  WriteSafetensors(dir_ + "/model.safetensors", tensors_);
  EXPECT_NE(LoadError().find("model.layers.3.mlp.up_proj.weight"), std::string::npos)
      << LoadError();
}

TEST_F(WeightsTest, WrongShapesAreNamedWithBothShapes) {
  tensors_["model.norm.weight"].shape = {160, 2};
  WriteSafetensors(dir_ + "/model.safetensors", tensors_);
  EXPECT_EQ(LoadError(), "weights: model.norm.weight has shape [160, 2], config.json wants [320]");
}

TEST_F(WeightsTest, IntegerTensorsAreRefused) {
  StoredTensor& norm = tensors_["model.norm.weight"];
  norm.dtype = "I32";
  norm.bytes.resize(320 * 4);
  WriteSafetensors(dir_ + "/model.safetensors", tensors_);
  EXPECT_EQ(LoadError(), "weights: model.norm.weight is I32, this worker reads F32, F16 and BF16");
}

// A bias that nobody adds would give wrong answers in silence.
TEST_F(WeightsTest, TensorsThatNobodyReadsAreRefused) {
  tensors_["model.layers.0.self_attn.q_proj.bias"] = tensors_["model.norm.weight"];
  WriteSafetensors(dir_ + "/model.safetensors", tensors_);
  EXPECT_EQ(LoadError(),
            "weights: model.layers.0.self_attn.q_proj.bias is not a tensor of such a decoder");
}

TEST_F(WeightsTest, AFolderWithoutWeightsIsNamed) {
  EXPECT_NE(LoadError().find(dir_), std::string::npos) << LoadError();
}

}  // namespace
}  // namespace prefixd::worker
