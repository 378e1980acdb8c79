// The model on devices with memory of their own: a GPU where there is one, and always the CPU in
// that part (paged_host.h). What the CPU computes is the oracle.
#include "client/worker/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "client/worker/gpu_library.h"
#include "client/worker/synthetic.h"
#include "tests/worker/paged_host.h"
#include "tests/worker/tiny_models.h"

namespace prefixd::worker {
namespace {

using Logits = std::vector<std::vector<float>>;

constexpr uint32_t kDecoded = 5;

// The GPU of the tests, opened once.
const absl::StatusOr<std::shared_ptr<Device>>& Gpu() {
  static const auto* const gpu = new absl::StatusOr<std::shared_ptr<Device>>(OpenGpu(0));
  return *gpu;
}

class DeviceTest : public ::testing::TestWithParam<bool> {  // true: the GPU
 protected:
  static bool on_gpu() { return GetParam(); }
  void SetUp() override {
    if (on_gpu() && !Gpu().ok()) GTEST_SKIP() << Gpu().status().message();
    device_ = on_gpu() ? *Gpu() : std::make_shared<PagedHost>(2);
  }
  std::unique_ptr<Rig> On(const std::string& model, const KvFormat& format,
                          std::shared_ptr<Device> device) const {
    if (model == "shipped") {
      return std::make_unique<Rig>(ShippedConfig(), *LoadWeights(kShippedModel, ShippedConfig()),
                                   format, 2, AttentionModes{}, std::move(device));
    }
    return std::make_unique<Rig>(TinyConfig(model), TinyWeights(model), format, 2, AttentionModes{},
                                 std::move(device));
  }
  std::shared_ptr<Device> device_;
};

// The logits of the last prompt token, then of some tokens decoded after it.
Logits Continue(Rig& rig, Sequence& sequence, std::vector<uint32_t> tokens, uint32_t from) {
  const auto prompt = static_cast<uint32_t>(tokens.size());
  rig.Prefill(sequence, tokens, from, prompt);
  Logits logits = {rig.Logits(prompt - 1)};
  for (uint32_t i = 0; i < kDecoded; ++i) {
    tokens.push_back(100 + i);
    rig.Decode(sequence, tokens);
    logits.push_back(rig.Logits(prompt + i));
  }
  return logits;
}

Logits Cold(Rig& rig, const std::vector<uint32_t>& tokens) {
  rig.state = {};
  Sequence sequence = rig.cache.space.Begin(tokens, {.max_cached_tokens = 0});
  return Continue(rig, sequence, tokens, 0);
}

double LargestDifference(const Logits& a, const Logits& b) {
  if (a.size() != b.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t token = 0; token < a[i].size(); ++token) {
      const double difference = std::fabs(double{a[i][token]} - double{b[i][token]});
      largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
    }
  }
  return largest;
}

std::vector<uint32_t> Best(const Logits& logits) {
  std::vector<uint32_t> best;
  for (const std::vector<float>& row : logits) {
    best.push_back(static_cast<uint32_t>(std::ranges::max_element(row) - row.begin()));
  }
  return best;
}

bool SameBits(const Logits& a, const Logits& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) return false;
  }
  return a.size() == b.size();
}

std::vector<std::string> Models() {
  std::vector<std::string> models = kTinyModels;
  models.push_back("shipped");
  return models;
}

// Raw f32, so that nothing but float32's rounding differs. Logits are up to 35.
TEST_P(DeviceTest, EveryFamilyComputesWhatTheCpuComputes) {
  for (const std::string& model : Models()) {
    const auto cpu = On(model, Raw(Dtype::kF32), nullptr);
    const auto other = On(model, Raw(Dtype::kF32), device_);
    double largest = 0;
    for (const uint32_t length : {1U, 17U, 64U, 65U, 128U, 200U, 299U}) {
      SCOPED_TRACE(testing::Message() << model << ", " << length << " tokens");
      const std::vector<uint32_t> tokens = TinyTokens(length);
      const Logits want = Cold(*cpu, tokens), got = Cold(*other, tokens);
      largest = std::max(largest, LargestDifference(want, got));
      EXPECT_EQ(Best(got), Best(want));
      EXPECT_TRUE(on_gpu() || SameBits(got, want));
    }
    EXPECT_LE(largest, 2e-3) << model;
    std::cout << model << ": logits differ from the CPU's by at most " << largest << "\n";
  }
}

// Quantized K and V turn a difference of rounding into another code now and then.
TEST_P(DeviceTest, QuantizedKvGivesNearlyTheCpusLogits) {
  for (const KvFormat& format :
       {MlxAffine(8, 64, Dtype::kF16), Tiled(MlxAffine(8, 64, 4, 64, Dtype::kF16)),
        Rotated(Tiled(MlxAffine(8, 32, Dtype::kBf16))), MlxAffine(6, 64, 3, 32, Dtype::kF16),
        Raw(Dtype::kF16), Raw(Dtype::kBf16)}) {
    const auto cpu = On("shipped", format, nullptr);
    const auto other = On("shipped", format, device_);
    const std::vector<uint32_t> tokens = HeldOutTokens(200);
    const Logits want = Cold(*cpu, tokens), got = Cold(*other, tokens);
    const double largest = LargestDifference(want, got);
    EXPECT_LE(largest, on_gpu() ? 0.5 : 0) << Describe(format);
    std::cout << Describe(format) << ": logits differ from the CPU's by at most " << largest
              << "\n";
  }
}

// Packed K or V of one layer: [kv_heads, tokens, bytes of a row], dense.
struct PackedRows {
  PackedRows(const TensorFormat& format, const ModelConfig& config, uint32_t count)
      : row(BytesOfRow(format, config.head_dim)),
        tokens(count),
        codes(size_t{config.kv_heads} * count * row.codes),
        scales(size_t{config.kv_heads} * count * row.scales),
        biases(size_t{config.kv_heads} * count * row.biases) {}
  template <typename View>
  View Of() {
    return {codes.data(),  scales.data(),
            biases.data(), size_t{tokens} * row.codes,
            row.codes,     size_t{tokens} * row.scales,
            row.scales};
  }
  bool operator==(const PackedRows& other) const {
    return codes == other.codes && scales == other.scales && biases == other.biases;
  }
  RowBytes row;
  uint32_t tokens;
  std::vector<std::byte> codes, scales, biases;
};

// What a hit does: the stored bytes of the first `tokens` tokens, and no computing.
void CopyPrefix(const ModelConfig& config, const KvFormat& format, const Sequence& from,
                Sequence& to, uint32_t tokens) {
  for (int layer = 0; layer < static_cast<int>(config.layers); ++layer) {
    PackedRows key(format.key, config, tokens), value(format.value, config, tokens);
    const Status gathered =
        from.Gather(layer, 0, tokens, key.Of<MutablePackedView>(), value.Of<MutablePackedView>());
    ASSERT_TRUE(gathered.ok()) << gathered.message;
    const Status written =
        to.WritePacked(layer, 0, tokens, key.Of<PackedView>(), value.Of<PackedView>());
    ASSERT_TRUE(written.ok()) << written.message;
  }
}

TEST_P(DeviceTest, AHitOfAnyLengthEqualsTheColdRunBitForBit) {
  for (const KvFormat& format : {Raw(Dtype::kF32), Tiled(MlxAffine(8, 64, 4, 32, Dtype::kF16)),
                                 Rotated(MlxAffine(8, 64, Dtype::kF16))}) {
    const auto rig = On("shipped", format, device_);
    const std::vector<uint32_t> tokens = HeldOutTokens(200);
    Sequence cold = rig->cache.space.Begin(tokens, {.max_cached_tokens = 0});
    const Logits want = Continue(*rig, cold, tokens, 0);
    for (const uint32_t hit : {1U, 17U, 63U, 64U, 65U, 127U, 128U, 199U}) {
      SCOPED_TRACE(testing::Message() << Describe(format) << ", a hit of " << hit << " tokens");
      rig->state = {};
      Sequence warm = rig->cache.space.Begin(tokens, {.max_cached_tokens = 0});
      ASSERT_NO_FATAL_FAILURE(CopyPrefix(rig->model.config(), format, cold, warm, hit));
      EXPECT_TRUE(SameBits(Continue(*rig, warm, tokens, hit), want));
    }
    rig->state = {};
  }
}

// The sequence, and with it the cache, has what the device attended on.
TEST_P(DeviceTest, AShorterPromptHasTheBytesOfALongerOne) {
  const KvFormat format = Tiled(MlxAffine(8, 64, 4, 64, Dtype::kF16));
  const auto rig = On("shipped", format, device_);
  const std::vector<uint32_t> tokens = HeldOutTokens(150);
  Sequence whole = rig->cache.space.Begin(tokens, {.max_cached_tokens = 0});
  rig->Prefill(whole, tokens, 0, 150);
  rig->state = {};
  const std::vector<uint32_t> shorter(tokens.begin(), tokens.begin() + 90);
  Sequence part = rig->cache.space.Begin(shorter, {.max_cached_tokens = 0});
  rig->Prefill(part, shorter, 0, 90);
  for (int layer = 0; layer < static_cast<int>(rig->model.config().layers); ++layer) {
    const ModelConfig& config = rig->model.config();
    PackedRows a(format.key, config, 90), b(format.key, config, 90);
    PackedRows c(format.value, config, 90), d(format.value, config, 90);
    ASSERT_TRUE(
        whole.Gather(layer, 0, 90, a.Of<MutablePackedView>(), c.Of<MutablePackedView>()).ok());
    ASSERT_TRUE(
        part.Gather(layer, 0, 90, b.Of<MutablePackedView>(), d.Of<MutablePackedView>()).ok());
    EXPECT_TRUE(a == b && c == d) << "layer " << layer;
  }
}

// The geometry of a big model: heads of 128 channels, a folded vocabulary, shared matrices.
TEST_P(DeviceTest, ASyntheticModelComputesWhatTheCpuComputes) {
  const absl::StatusOr<ModelConfig> config = SyntheticConfig("qwen3-0.6b", 2);
  ASSERT_TRUE(config.ok());
  const KvFormat format = Raw(Dtype::kF32);
  Rig cpu(*config, SyntheticWeights(*config), format);
  Rig other(*config, SyntheticWeights(*config), format, 2, {}, device_);
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < 130; ++i) tokens.push_back((i * 7919) % config->vocab_size);
  const Logits want = Cold(cpu, tokens), got = Cold(other, tokens);
  EXPECT_LE(LargestDifference(want, got), 2e-3);
  EXPECT_EQ(Best(got), Best(want));
  other.state = {};
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceTest, ::testing::Bool(),
                         [](const auto& it) { return it.param ? "cuda" : "pagesOnTheHost"; });

// All layers but the first of each block are quantized by the device, and cached pages are copied.
TEST(DeviceKvTest, PagesAreQuantizedOnTheDeviceAndCachedOnesLoaded) {
  const auto device = std::make_shared<PagedHost>(2);
  const KvFormat format = MlxAffine(8, 64, Dtype::kF16);
  Rig rig(ShippedConfig(), *LoadWeights(kShippedModel, ShippedConfig()), format, 2, {}, device);
  const std::vector<uint32_t> tokens = HeldOutTokens(200);
  Sequence cold = rig.cache.space.Begin(tokens, {.max_cached_tokens = 0});
  rig.Prefill(cold, tokens, 0, 200);
  const uint32_t layers = ShippedConfig().layers;
  EXPECT_EQ(device->quantized_tokens(), 200U * (layers - 1));
  EXPECT_EQ(device->loaded_pages(), 4U) << "of the first layer, which the sequence quantized";
  rig.state = {};
  rig.Prefill(cold, tokens, 192, 200);  // appended again: the same bytes
  EXPECT_EQ(device->loaded_pages(), 4U + 3 * layers + 1);
}

TEST(DeviceKvTest, AStepWithoutARunningStateIsRefused) {
  const auto device = std::make_shared<PagedHost>(2);
  Rig rig(ShippedConfig(), *LoadWeights(kShippedModel, ShippedConfig()), Raw(Dtype::kF32), 2, {},
          device);
  const std::vector<uint32_t> tokens = HeldOutTokens(10);
  Sequence sequence = rig.cache.space.Begin(tokens);
  const auto step = rig.model.Prefill(sequence, {.tokens = tokens, .begin = 0, .end = 10});
  EXPECT_EQ(step.status().message(), "device: a step without a RunningState");
}

TEST(GpuLibraryTest, AMissingLibraryIsNamedWithThePlacesWhereItWasLookedFor) {
  ASSERT_EQ(setenv("PREFIXD_WORKER_CUDA", "/nonexistent/libprefixd_worker_cuda.so", 1), 0);
  const auto gpu = OpenGpu(0);
  unsetenv("PREFIXD_WORKER_CUDA");
  ASSERT_FALSE(gpu.ok());
  const std::string message(gpu.status().message());
  for (const char* part : {"libprefixd_worker_cuda.so was not found at $PREFIXD_WORKER_CUDA",
                           "/nonexistent/libprefixd_worker_cuda.so: cannot open shared object",
                           "built where nvcc is"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST(GpuLibraryTest, AGpuThatIsNotThereIsNamed) {
  const auto gpu = OpenGpu(9999);
  ASSERT_FALSE(gpu.ok());
  const std::string message(gpu.status().message());
  const bool has_library = message.find("was not found beside the program") == std::string::npos;
  EXPECT_TRUE(!has_library || message.rfind("open: ", 0) == 0) << message;
}

}  // namespace
}  // namespace prefixd::worker
