// Which space the caches of a llama.cpp context belong to.
#include "client/llama/model_space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/gguf_file.h"

namespace prefixd::llama {
namespace {

using ::testing::HasSubstr;
using File = prefixd::testing::GgufFile;

// As files of Llama 3 have it: no lengths of keys and values.
File Llama() {
  File file;
  file.Text("general.architecture", "llama").Text("general.name", "Llama 3");
  file.Number("llama.embedding_length", 512).Number("llama.attention.head_count", 8);
  file.Number("llama.attention.head_count_kv", 2).Number("llama.rope.dimension_count", 64);
  file.Real("llama.rope.freq_base", 500000).Texts("tokenizer.ggml.tokens", 5);
  return file;
}

interop::LlamaContext Context(size_t layers = 3) {
  interop::LlamaCache cache;
  cache.keys.assign(layers,
                    {.format = quant::GgmlFormat(quant::Codec::kQ8_0), .token_bytes = 2 * 68});
  cache.values.assign(layers,
                      {.format = quant::RawFormat(quant::Dtype::kF16), .token_bytes = 2 * 128});
  cache.key_rotation = 64;
  interop::LlamaContext context;
  context.caches.push_back(std::move(cache));
  return context;
}

absl::StatusOr<SpaceSpec> Spec(const File& file, const interop::LlamaContext& context) {
  const absl::StatusOr<interop::Gguf> gguf = interop::Gguf::Parse(file.bytes());
  EXPECT_TRUE(gguf.ok()) << gguf.status();
  return SpaceOf(*gguf, Digest{std::byte{1}}, context, {.context_tokens = 8192});
}
std::string Refusal(const File& file, const interop::LlamaContext& context) {
  const absl::StatusOr<SpaceSpec> spec = Spec(file, context);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(spec.status().message());
}

TEST(ModelSpaceTest, HeadsAndDimsAreTheFilesAndFormatsTheContexts) {
  const absl::StatusOr<SpaceSpec> spec = Spec(Llama(), Context());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->model, "Llama 3");
  ASSERT_EQ(spec->layers.size(), 3u);
  EXPECT_EQ(spec->layers[0].kv_heads, 2u);
  EXPECT_EQ(spec->layers[0].key_dim, 64u);
  EXPECT_EQ(spec->layers[0].value_dim, 64u);
  EXPECT_EQ(spec->rope.theta, 500000);
  const KvFormat& format = spec->layers[0].formats.at(0);
  EXPECT_EQ(format.key.codec, Codec::kQ8_0);
  EXPECT_EQ(format.key.rotation, Rotation::kHadamard);
  EXPECT_EQ(format.key.layout, Layout::kRows) << "tiled pages could not be read in one pass";
  EXPECT_EQ(format.value.dtype, Dtype::kF16);
  EXPECT_EQ(format.value.rotation, Rotation::kNone);
}

TEST(ModelSpaceTest, ALayerMayHaveItsOwnNumberOfHeads) {
  File file;
  file.Text("general.architecture", "openelm").Number("openelm.embedding_length", 512);
  file.Number("openelm.block_count", 3);
  file.Numbers("openelm.attention.head_count", {8, 8, 8});
  file.Numbers("openelm.attention.head_count_kv", {2, 2, 4});
  interop::LlamaContext context = Context();
  context.caches[0].keys[2].token_bytes = 4 * 68;
  context.caches[0].values[2].token_bytes = 4 * 128;
  const absl::StatusOr<SpaceSpec> spec = Spec(file, context);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->layers[1].kv_heads, 2u);
  EXPECT_EQ(spec->layers[2].kv_heads, 4u);
}

TEST(ModelSpaceTest, L4WhatDecidesTheBytesDecidesTheSpace) {
  const interop::Gguf gguf = *interop::Gguf::Parse(Llama().bytes());
  const SpaceSpec base = *SpaceOf(gguf, Digest{std::byte{1}}, Context(), {.context_tokens = 8192});
  const auto weights = [&](const interop::LlamaContext& context, const std::string& adapters = "",
                           Digest file = {std::byte{1}}) {
    return SpaceOf(gguf, file, context, {.context_tokens = 8192, .adapters = adapters})
        ->weights_digest;
  };
  interop::LlamaContext context = Context();
  EXPECT_EQ(weights(context), base.weights_digest);
  context.caches[0].streams = 4;
  EXPECT_EQ(weights(context), base.weights_digest) << "the same bytes in another frame";
  context.caches[0].key_rotation = 0;
  EXPECT_NE(weights(context), base.weights_digest);
  context.caches[0].key_rotation = 32;
  EXPECT_NE(weights(context), base.weights_digest);
  EXPECT_NE(weights(Context(), "[{\"id\":0}]"), base.weights_digest);
  EXPECT_NE(weights(Context(), "", {std::byte{2}}), base.weights_digest);
  context = Context();
  context.caches[0].values_transposed = true;
  EXPECT_EQ(SpaceOf(gguf, {}, context, {.context_tokens = 8192})->layers[0].formats[0].value.layout,
            Layout::kTransposed);
}

TEST(ModelSpaceTest, L4KeysThatMayBeRotatedBelongToOneBuildOfLlamaCpp) {
  const interop::Gguf gguf = *interop::Gguf::Parse(Llama().bytes());
  interop::LlamaContext context = Context();
  context.caches[0].key_rotation = 0;
  const auto weights = [&](const std::string& build) {
    return SpaceOf(gguf, Digest{std::byte{1}}, context, {.context_tokens = 8192, .build = build})
        ->weights_digest;
  };
  const Digest told = weights("one");
  EXPECT_EQ(told, weights("another")) << "version 4 says that they are not";
  context.version = 3;
  EXPECT_THAT(Refusal(Llama(), context), HasSubstr("states of version 3 do not say whether"));
  EXPECT_EQ(weights("one"), weights("one"));
  EXPECT_NE(weights("one"), weights("another"));
  EXPECT_NE(weights("one"), told);
  context.caches[0].keys = context.caches[0].values;  // f16 is never rotated
  EXPECT_EQ(weights("one"), weights(""));
}

TEST(ModelSpaceTest, L4LongContextsOfAModelWithLongropeArePartedFromShortOnes) {
  const auto weights = [](const File& file, uint64_t context_tokens) {
    const interop::Gguf gguf = *interop::Gguf::Parse(file.bytes());
    return SpaceOf(gguf, Digest{std::byte{1}}, Context(), {.context_tokens = context_tokens})
        ->weights_digest;
  };
  File file = Llama();
  file.Number("llama.rope.scaling.original_context_length", 4096);
  EXPECT_EQ(weights(file, 512), weights(file, 4096));
  EXPECT_NE(weights(file, 4096), weights(file, 4097));
  EXPECT_EQ(weights(file, 4097), weights(file, 131072));
  EXPECT_EQ(weights(Llama(), 512), weights(Llama(), 131072)) << "it has one set of factors";
}

TEST(ModelSpaceTest, L5SlidingAndRecurrentLayersAreOneLayerOfSnapshots) {
  interop::LlamaContext context = Context(2);
  context.caches.push_back(Context(1).caches[0]);
  context.recurrent_bytes = 1080;
  File file = Llama();
  file.Number("llama.attention.sliding_window", 1024);
  const absl::StatusOr<SpaceSpec> spec = Spec(file, context);
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_EQ(spec->layers.size(), 3u);
  EXPECT_EQ(spec->layers[1].kind, LayerKind::kFull);
  EXPECT_EQ(spec->layers[2].kind, LayerKind::kState);
  const uint64_t token =
      context.caches[1].keys[0].token_bytes + context.caches[1].values[0].token_bytes;
  EXPECT_EQ(spec->layers[2].state_bytes, 1024 * token + 1080);
  context.caches[1].keys[0].format = quant::GgmlFormat(quant::Codec::kQ5_0);
  EXPECT_NE(Spec(file, context)->weights_digest, spec->weights_digest);
}

TEST(ModelSpaceTest, AFileAndAContextThatDisagreeAreRefusedByName) {
  interop::LlamaContext context = Context();
  context.caches[0].keys[1].token_bytes = 100;
  EXPECT_THAT(Refusal(Llama(), context),
              HasSubstr("layer 1, keys: a token has 100 bytes, by the file heads of 64 elements, "
                        "68 bytes each"));
  context.caches[0].keys[1].token_bytes = 4 * 68;
  EXPECT_THAT(Refusal(Llama(), context), HasSubstr("layer 1 has 4 heads of keys and 2 of values"));
  context = Context();
  context.caches.push_back(context.caches[0]);
  EXPECT_THAT(Refusal(Llama(), context), HasSubstr("no attention.sliding_window"));
  EXPECT_THAT(Refusal(File(), Context()), HasSubstr("names no architecture"));
  EXPECT_THAT(Refusal(File().Text("general.architecture", "x"), Context()),
              HasSubstr("layer 0, keys: "));
}

TEST(GgufTest, AFileThatIsCutAnywhereIsRefused) {
  const std::string file = Llama().bytes();
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(interop::Gguf::Parse(file.substr(0, size)).ok()) << size;
  }
  EXPECT_TRUE(interop::Gguf::Parse(file).ok());
  std::string other = file;
  other[4] = 9;
  EXPECT_THAT(std::string(interop::Gguf::Parse(other).status().message()),
              HasSubstr("version 9, accepted: 2 and 3"));
}

}  // namespace
}  // namespace prefixd::llama
