// Engines that compute on elements: a Plan quantizes their rows into pages, a Lease dequantizes
// them out, to the bit what quant/codec.h says of each row.
#include <optional>

#include "quant/codec.h"
#include "tests/client/daemon.h"
#include "tests/client/support.h"

namespace prefixd {
namespace {

constexpr uint32_t kRowTokens = 300;
constexpr float kUntouched = -77.0f;

// One layer's K or V with room between rows and between heads.
struct Strided {
  Strided(uint32_t heads_in, uint32_t dim_in, uint32_t tokens_in, float fill)
      : heads(heads_in),
        dim(dim_in),
        tokens(tokens_in),
        token_stride(dim + 3),
        head_stride(tokens * token_stride + 5),
        data(heads * head_stride, fill) {}
  size_t At(uint32_t head, uint32_t token) const {
    return head * head_stride + token * token_stride;
  }
  std::span<float> Row(uint32_t head, uint32_t token) {
    return {data.data() + At(head, token), dim};
  }
  TensorView From(uint32_t token) const {
    return {.data = data.data() + At(0, token),
            .dtype = Dtype::kF32,
            .head_stride = head_stride,
            .token_stride = token_stride};
  }
  MutableTensorView view() {
    return {.data = data.data(),
            .dtype = Dtype::kF32,
            .head_stride = head_stride,
            .token_stride = token_stride};
  }
  uint32_t heads, dim, tokens;
  size_t token_stride, head_stride;
  std::vector<float> data;
};

class ElementRowsTest : public testing::Test {
 protected:
  void Open(const SpaceSpec& spec) {
    spec_ = spec;
    space_ = {};
    client_.reset();
    daemon_.reset();
    daemon_.emplace(directory_.socket(), DaemonOptions{.arena = arena_.path(), .directory = ""});
    client_.emplace(ClientOptions{.address = directory_.address()});
    space_ = client_->OpenSpace(spec_);
    ASSERT_TRUE(space_.ok()) << space_.status.message;
  }
  // Random rows of the layer.
  Strided Rows(uint32_t layer, bool is_key) const {
    const LayerSpec& l = spec_.layers[layer];
    Strided rows(l.kv_heads, is_key ? l.key_dim : l.value_dim, kRowTokens, kUntouched);
    const std::vector<float> dense =
        Tensor(tokens_, 0, kRowTokens, layer, rows.heads, rows.dim, is_key);
    auto from = dense.begin();
    for (uint32_t head = 0; head < rows.heads; ++head) {
      for (uint32_t token = 0; token < kRowTokens; ++token) {
        std::copy_n(from, rows.dim, rows.Row(head, token).begin());
        from += rows.dim;
      }
    }
    return rows;
  }
  void Store() {
    Plan plan = space_.value().Reserve(tokens_);
    ASSERT_TRUE(plan.status().ok()) << plan.status().message;
    for (const TokenRun run : plan.missing()) {
      for (uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
        const Strided key = Rows(layer, true), value = Rows(layer, false);
        const uint32_t middle = std::min(run.begin + 33, run.end);  // a block comes in two parts
        for (const auto& [begin, end] : {std::pair{run.begin, middle}, {middle, run.end}}) {
          const Status status = plan.WriteRows(static_cast<int>(layer), begin, end - begin,
                                               key.From(begin), value.From(begin));
          ASSERT_TRUE(status.ok()) << status.message;
        }
      }
      ASSERT_TRUE(plan.Commit(run.end).ok());
    }
    ASSERT_TRUE(plan.Commit(kRowTokens, {.sequence_end = true}).ok());
  }
  // Checks that `got` has rows [begin, begin + got.tokens) of the layer as `format` gives them
  // back.
  void Check(uint32_t layer, bool is_key, uint32_t begin, TensorFormat format, Strided got) const {
    format = quant::InRows(format);
    Strided rows = Rows(layer, is_key);
    const quant::RowBytes bytes = quant::BytesOfStoredRow(format, rows.dim);
    std::vector<std::byte> codes(bytes.codes), scales(bytes.scales), biases(bytes.biases);
    std::vector<float> want(rows.dim);
    for (uint32_t head = 0; head < rows.heads; ++head) {
      for (uint32_t t = 0; t < got.tokens; ++t) {
        quant::QuantizeRow(format, rows.Row(head, begin + t),
                           {codes.data(), scales.data(), biases.data()});
        quant::DequantizeRow(format, {codes.data(), scales.data(), biases.data()}, want);
        const auto row = got.Row(head, t);
        ASSERT_TRUE(std::equal(want.begin(), want.end(), row.begin()))
            << quant::ToString(format) << " layer " << layer << " head " << head << " token "
            << begin + t;
        std::fill(row.begin(), row.end(), kUntouched);
      }
    }
    EXPECT_EQ(got.data, std::vector<float>(got.data.size(), kUntouched)) << "between the rows";
  }
  void CheckLayers(Lease& lease, uint32_t begin, uint32_t count,
                   const std::function<KvFormat(uint32_t)>& format_of) {
    for (uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
      const LayerSpec& l = spec_.layers[layer];
      Strided key(l.kv_heads, l.key_dim, count, kUntouched);
      Strided value(l.kv_heads, l.value_dim, count, kUntouched);
      const Status status =
          lease.GatherRows(static_cast<int>(layer), begin, count, key.view(), value.view());
      ASSERT_TRUE(status.ok()) << status.message;
      Check(layer, true, begin, format_of(layer).key, key);
      Check(layer, false, begin, format_of(layer).value, value);
    }
  }

  TempDirectory directory_;
  ArenaPath arena_;
  std::optional<Daemon> daemon_;
  std::optional<Client> client_;
  SpaceSpec spec_;
  Result<Space> space_;
  const std::vector<uint32_t> tokens_ = Tokens(kRowTokens, 1);
};

TEST_F(ElementRowsTest, RowsOfEveryFormatAreThoseOfTheCodecToTheBit) {
  KvFormat transposed = Raw(Dtype::kF16);
  transposed.value.layout = Layout::kTransposed;
  for (const KvFormat& format :
       {Raw(Dtype::kF32), Raw(Dtype::kBf16), transposed, MlxAffine(8, 64, Dtype::kF32),
        MlxAffine(8, 64, 4, 32, Dtype::kBf16), MlxAffine(3, 64, Dtype::kF16),
        Tiled(MlxAffine(4, 64, Dtype::kF16)), Ggml(Codec::kQ8_0, Codec::kQ4_0),
        BlockFloat(Codec::kMxFp8, Codec::kNvFp4)}) {
    SCOPED_TRACE(quant::ToString(format));
    Open(SmallSpace(format));
    Store();
    Lease lease = space_.value().Acquire(tokens_);
    ASSERT_EQ(lease.WaitAll(), kRowTokens);
    const auto same = [&](uint32_t) { return format; };
    CheckLayers(lease, 0, kRowTokens, same);
    CheckLayers(lease, 37, 200, same);
  }
}

TEST_F(ElementRowsTest, TokensInSeveralFormatsComeOutInOneCall) {
  SpaceSpec spec = SmallSpace(Raw(Dtype::kF16));
  for (LayerSpec& layer : spec.layers) {
    layer.formats = {Raw(Dtype::kF16), MlxAffine(8, 64, Dtype::kF16)};
  }
  Open(spec);
  {
    Sequence seq =
        space_.value().Begin(tokens_, {.write_format = 1, .head_tokens = 128, .head_format = 0});
    AppendTokens(seq, spec_, tokens_, 0, kRowTokens);
    ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
  }
  Lease lease = space_.value().Acquire(tokens_);
  ASSERT_EQ(lease.WaitAll(), kRowTokens);
  Packed key(Raw(Dtype::kF16).key, 2, 64, kRowTokens),
      value(Raw(Dtype::kF16).value, 2, 128, kRowTokens);
  EXPECT_EQ(lease.Gather(0, 0, kRowTokens, key.view(), value.view()).code,
            StatusCode::kFailedPrecondition);
  Strided k(2, 64, kRowTokens, kUntouched), v(2, 128, kRowTokens, kUntouched);
  const uint64_t before = client_->stats().gathered_bytes;
  ASSERT_TRUE(lease.GatherRows(0, 0, kRowTokens, k.view(), v.view()).ok());
  EXPECT_EQ(client_->stats().gathered_bytes - before,
            2 * 192 * (128 * 2 + (kRowTokens - 128)) + 2 * 3 * (kRowTokens - 128) * 4);
  for (const auto& [begin, end, format] : {std::tuple{0u, 128u, Raw(Dtype::kF16)},
                                           {128u, kRowTokens, MlxAffine(8, 64, Dtype::kF16)}}) {
    Strided part(2, 64, end - begin, kUntouched);
    for (uint32_t head = 0; head < 2; ++head) {
      for (uint32_t t = begin; t < end; ++t) {
        std::copy_n(k.Row(head, t).begin(), 64, part.Row(head, t - begin).begin());
      }
    }
    Check(0, true, begin, format.key, part);
  }
}

TEST_F(ElementRowsTest, WhatCannotBeIsRefusedInASentenceAndWritesNothing) {
  Open(SmallSpace(MlxAffine(8, 64, Dtype::kF16)));
  Store();
  Lease lease = space_.value().Acquire(tokens_);
  ASSERT_EQ(lease.WaitAll(), kRowTokens);
  Strided key(2, 64, kRowTokens, kUntouched), value(2, 128, kRowTokens, kUntouched);
  const auto refusal = [&](const MutableTensorView& k, const MutableTensorView& v,
                           uint32_t count = kRowTokens) {
    return lease.GatherRows(0, 0, count, k, v).message;
  };
  MutableTensorView wrong = key.view();
  wrong.data = nullptr;
  EXPECT_EQ(refusal(wrong, value.view()), "gather_rows: key has no data");
  wrong = value.view();
  wrong.dtype = static_cast<Dtype>(9);
  EXPECT_EQ(refusal(key.view(), wrong), "gather_rows: value dtype is 9, known are 1 to 3");
  wrong = key.view();
  wrong.token_stride = 63;
  EXPECT_EQ(refusal(wrong, value.view()), "gather_rows: key token_stride is 63, a row has 64");
  EXPECT_NE(refusal(key.view(), value.view(), kRowTokens + 1).find("the lease has 300"),
            std::string::npos);
  EXPECT_EQ(key.data, std::vector<float>(key.data.size(), kUntouched));
  EXPECT_EQ(Lease().GatherRows(0, 0, 1, key.view(), value.view()).code,
            StatusCode::kFailedPrecondition);
  const std::vector<uint32_t> others = Tokens(200, 9);
  Plan plan = space_.value().Reserve(others);
  EXPECT_EQ(plan.WriteRows(3, 0, 1, key.From(0), value.From(0)).message,
            "write_rows: layer 3, the space has 3");
  EXPECT_EQ(plan.WriteRows(0, 150, 51, key.From(0), value.From(0)).message,
            "write_rows: tokens up to 201, the plan has 200");
  EXPECT_EQ(plan.WriteRows(0, 3, 1, key.From(0), value.From(0)).message,
            "write_rows: begin is 3 in layer 0, the block at token 0 is written up to 0");
  EXPECT_FALSE(plan.Commit(64).ok()) << "nothing is written";
}

}  // namespace
}  // namespace prefixd
