// prefixctl import and export against a real daemon: what goes in comes out, byte for byte.
#include "client/cli/carry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

#include "client/cli/commands.h"
#include "client/cli/identity_file.h"
#include "interop/prompt_cache.h"
#include "tests/client/daemon.h"

namespace prefixd::cli {
namespace {

using interop::Array;
using interop::MlxCache;
using interop::PromptCache;
using interop::PromptCacheStyle;
using interop::TensorDtype;
using ::testing::HasSubstr;

constexpr char kIdentity[] = R"({"model": "tiny", "weights_digest": ")"
                             "abababababababababababababababababababababababababababababababab"
                             R"(", "rope": {"theta": 10000, "rotary_dim": 64}})";

struct Ran {
  int exit_code = 0;
  std::string out, err;
};

class CarryTest : public ::testing::Test {
 protected:
  CarryTest() : daemon_(directory_.socket()) {
    std::ofstream(PathOf("identity.json")) << kIdentity;
    std::ofstream(PathOf("ids.json")) << "[" << absl::StrJoin(tokens_, ", ") << "]\n";
  }
  std::string PathOf(const std::string& name) const { return directory_.path() + "/" + name; }

  Ran Run(const std::vector<std::string>& arguments) {
    std::istringstream in;
    std::ostringstream out, err;
    const Surroundings surroundings{.environment = {{"PREFIXD_SERVER", directory_.address()}},
                                    .exists = [](const std::string&) { return false; }};
    const int code =
        RunPrefixctl(arguments, surroundings, {.in = in, .out = out, .err = err, .can_ask = false});
    return {code, out.str(), err.str()};
  }
  Ran ImportWithFlags(const std::string& file) {
    return Run({"import", PathOf(file), "--identity", PathOf("identity.json"), "--tokens-file",
                PathOf("ids.json")});
  }
  std::string SpaceId() {
    return nlohmann::json::parse(Run({"--json", "spaces"}).out)["spaces"][0]["space_id"];
  }

  static Array Random(TensorDtype dtype, const std::vector<uint64_t>& shape, uint32_t seed) {
    Array array{.dtype = dtype, .shape = shape};
    std::vector<std::byte> bytes(array.elements() * interop::BytesOf(dtype));
    std::mt19937 random(seed);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    array.memory = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    array.bytes = *array.memory;
    return array;
  }
  // Two layers, K of 64 elements, V of 128, in `allocated` slots.
  static PromptCache Raw(uint64_t allocated, uint32_t offset) {
    PromptCache cache;
    cache.style = PromptCacheStyle::kScalars;
    for (uint32_t i = 0; i < 2; ++i) {
      cache.layers.push_back(
          {.class_name = "KVCache",
           .state = {{"0", Random(TensorDtype::kF16, {1, 2, allocated, 64}, 10 + i)},
                     {"1", Random(TensorDtype::kF16, {1, 2, allocated, 128}, 20 + i)}},
           .meta = {absl::StrCat(offset)}});
    }
    return cache;
  }
  // K of 8 bits in groups of 64, V of 4 in groups of 32.
  static PromptCache Quantized(uint64_t tokens) {
    PromptCache cache;
    for (uint32_t i = 0; i < 3; ++i) {
      MlxCache layer{.class_name = "QuantizedKVCache",
                     .state = {},
                     .meta = {absl::StrCat(tokens), "64", "8", "32", "4"}};
      layer.state["0.0"] = Random(TensorDtype::kU32, {1, 2, tokens, 16}, 30 + i);
      layer.state["1.0"] = Random(TensorDtype::kU32, {1, 2, tokens, 16}, 40 + i);
      for (const char* part : {"1", "2"}) {
        layer.state[absl::StrCat("0.", part)] =
            Random(TensorDtype::kBf16, {1, 2, tokens, 1}, 50 + i);
        layer.state[absl::StrCat("1.", part)] =
            Random(TensorDtype::kBf16, {1, 2, tokens, 4}, 60 + i);
      }
      cache.layers.push_back(std::move(layer));
    }
    return cache;
  }
  void Write(const std::string& name, const PromptCache& cache) const {
    const absl::Status status = interop::WritePromptCache(PathOf(name), cache);
    ASSERT_TRUE(status.ok()) << status;
  }
  // Both files hold the same first `tokens` tokens, and the second no more.
  void ExpectSameTokens(const std::string& whole, const std::string& part, uint32_t tokens) const {
    const auto a = interop::ReadPromptCache(PathOf(whole)),
               b = interop::ReadPromptCache(PathOf(part));
    ASSERT_TRUE(a.ok()) << a.status();
    ASSERT_TRUE(b.ok()) << b.status();
    ASSERT_EQ(a->layers.size(), b->layers.size());
    for (size_t i = 0; i < a->layers.size(); ++i) {
      auto rows = interop::ReadKvRows(a->layers[i]);
      const auto seen = interop::ReadKvRows(b->layers[i]);
      ASSERT_TRUE(rows.ok() && seen.ok()) << rows.status() << seen.status();
      ASSERT_TRUE(interop::Cut(tokens, &*rows).ok());
      EXPECT_EQ(seen->rows, tokens);
      EXPECT_EQ(seen->offset, tokens);
      for (const auto tensor : {&interop::KvRows::key, &interop::KvRows::value}) {
        EXPECT_TRUE((*seen.*tensor).format == (*rows.*tensor).format);
        EXPECT_TRUE((*seen.*tensor).codes == (*rows.*tensor).codes) << "layer " << i;
        EXPECT_TRUE((*seen.*tensor).scales == (*rows.*tensor).scales) << "layer " << i;
        EXPECT_TRUE((*seen.*tensor).biases == (*rows.*tensor).biases) << "layer " << i;
      }
    }
  }

  const std::vector<uint32_t> tokens_ = Tokens(300, 1);
  TempDirectory directory_;
  Daemon daemon_;
};

TEST_F(CarryTest, WhatWasImportedIsExportedByteForByte) {
  Write("raw.safetensors", Raw(512, 300));
  const Ran import = ImportWithFlags("raw.safetensors");
  ASSERT_EQ(import.exit_code, kExitOk) << import.err;
  EXPECT_THAT(import.out, HasSubstr("imported 300 tokens in raw/f16 (450.0 KiB)"));
  EXPECT_THAT(import.out, HasSubstr(": 300 stored, 0 known already\n"));
  EXPECT_THAT(ImportWithFlags("raw.safetensors").out, HasSubstr(": 0 stored, 300 known already\n"));
  const Ran save = Run({"export", PathOf("out.safetensors"), "--space", SpaceId().substr(0, 6),
                        "--tokens-file", PathOf("ids.json")});
  ASSERT_EQ(save.exit_code, kExitOk) << save.err;
  EXPECT_THAT(save.out, HasSubstr("exported 300 of 300 tokens in raw/f16"));
  ExpectSameTokens("raw.safetensors", "out.safetensors", 300);
}

// What is stored then begins in the middle of the file's tensors.
TEST_F(CarryTest, OnlyWhatIsMissingIsStored) {
  Write("start.safetensors", Raw(512, 128));
  const std::vector<uint32_t> start(tokens_.begin(), tokens_.begin() + 128);
  ASSERT_EQ(Run({"import", PathOf("start.safetensors"), "--identity", PathOf("identity.json"),
                 "--tokens", absl::StrJoin(start, ",")})
                .exit_code,
            kExitOk);
  Write("raw.safetensors", Raw(512, 300));
  EXPECT_THAT(ImportWithFlags("raw.safetensors").out, HasSubstr(": 172 stored, 128 known already"));
  ASSERT_EQ(Run({"export", PathOf("out.safetensors"), "--space", SpaceId(), "--tokens-file",
                 PathOf("ids.json")})
                .exit_code,
            kExitOk);
  ExpectSameTokens("raw.safetensors", "out.safetensors", 300);
}

TEST_F(CarryTest, KeysAndValuesOfDifferentBitsKeepTheirScalesAndAreCutAtTheToken) {
  Write("q.safetensors", Quantized(300));
  ASSERT_EQ(ImportWithFlags("q.safetensors").exit_code, kExitOk);
  std::vector<uint32_t> diverged = tokens_;
  diverged[171] += 1;
  const Ran save = Run({"--json", "export", PathOf("out.safetensors"), "--space", SpaceId(),
                        "--tokens", absl::StrJoin(diverged, ","), "--style", "meta-state"});
  ASSERT_EQ(save.exit_code, kExitOk) << save.err;
  const nlohmann::json json = nlohmann::json::parse(save.out);
  EXPECT_EQ(json["tokens"], 171);
  EXPECT_EQ(json["asked_tokens"], 300);
  EXPECT_EQ(json["format"], "mlx_affine/8/64/bf16+mlx_affine/4/32/bf16");
  ExpectSameTokens("q.safetensors", "out.safetensors", 171);
}

// The file that export writes says whose it is: another daemon needs no flags.
TEST_F(CarryTest, AnExportedFileIsImportedElsewhereByItself) {
  Write("raw.safetensors", Raw(300, 300));
  ASSERT_EQ(ImportWithFlags("raw.safetensors").exit_code, kExitOk);
  const std::string space = SpaceId();
  ASSERT_EQ(Run({"export", PathOf("out.safetensors"), "--space", space, "--tokens-file",
                 PathOf("ids.json")})
                .exit_code,
            kExitOk);
  ASSERT_EQ(Run({"clear", "--all", "--yes"}).exit_code, kExitOk);
  const Ran import = Run({"--json", "import", PathOf("out.safetensors")});
  ASSERT_EQ(import.exit_code, kExitOk) << import.err;
  const nlohmann::json json = nlohmann::json::parse(import.out);
  EXPECT_EQ(json["space_id"], space);
  EXPECT_EQ(json["stored_tokens"], 300);
}

TEST_F(CarryTest, WhatIsNotCachedIsNotWritten) {
  Write("raw.safetensors", Raw(300, 300));
  ASSERT_EQ(ImportWithFlags("raw.safetensors").exit_code, kExitOk);
  const Ran save =
      Run({"export", PathOf("out.safetensors"), "--space", SpaceId(), "--tokens", "9,9,9"});
  EXPECT_EQ(save.exit_code, kExitNothing);
  EXPECT_EQ(save.out, "none of 3 tokens is cached: nothing was written\n");
  EXPECT_FALSE(std::filesystem::exists(PathOf("out.safetensors")));
}

TEST_F(CarryTest, FilesAndFlagsThatDoNotFitAreRefusedByName) {
  Write("raw.safetensors", Raw(300, 299));
  EXPECT_THAT(ImportWithFlags("raw.safetensors").err,
              HasSubstr("holds 299 tokens, 300 token ids are given"));
  EXPECT_THAT(Run({"import", PathOf("raw.safetensors")}).err, HasSubstr("give them with"));
  EXPECT_THAT(Run({"import", PathOf("raw.safetensors"), "--tokens",
                   absl::StrJoin(std::vector<uint32_t>(tokens_.begin(), tokens_.end() - 1), ",")})
                  .err,
              HasSubstr("give --identity or --space"));
  PromptCache cache = Raw(300, 300);
  cache.layers[1].class_name = "RotatingKVCache";
  cache.layers[1].meta = {"4", "300", "500", "40"};
  Write("wrapped.safetensors", cache);
  EXPECT_THAT(ImportWithFlags("wrapped.safetensors").err,
              HasSubstr("layer 1 has wrapped at offset 500"));
  EXPECT_THAT(ImportWithFlags("absent.safetensors").err, HasSubstr("absent.safetensors"));
  EXPECT_EQ(Run({"export", "x", "--tokens", "1"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"export", "x", "--space", "3f"}).exit_code, kExitUsage);
  EXPECT_THAT(Run({"export", "x", "--space", "3f", "--tokens", "1", "--style", "new"}).err,
              HasSubstr("accepted: mlx-lm-0.32, meta-state"));
  EXPECT_THAT(ReadIdentity(R"({"model": "m", "weight_digest": ""})").status().ToString(),
              HasSubstr("weight_digest is no field of it"));
  EXPECT_THAT(ReadIdentity(R"({"model": "m", "weights_digest": "ab"})").status().ToString(),
              HasSubstr("64 hexadecimal digits"));
}

TEST(IdentityFileTest, AnIdentityReadsBackWhatWasWritten) {
  SpaceSpec spec = SmallSpace(MlxAffine(8, 64, 4, 32, Dtype::kBf16));
  spec.rope = {.theta = 5e5, .scaling = "llama3", .scaling_params = {8, 1, 4}, .rotary_dim = 64};
  spec.salt = "s";
  spec.block_tokens = 32;
  const absl::StatusOr<SpaceSpec> read = ReadIdentity(WriteIdentity(spec));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(WriteIdentity(*read), WriteIdentity(spec));
  EXPECT_EQ(read->layers.size(), 3u);
  EXPECT_EQ(read->rope.scaling_params, spec.rope.scaling_params);
}

}  // namespace
}  // namespace prefixd::cli
