// prefixctl import and export against a real daemon: what goes in comes out, byte for byte.
#include "client/cli/carry.h"

#include "client/cli/identity_file.h"
#include "client/cpp/convert.h"
#include "tests/cli/carry_fixture.h"
#include "wire/identity.h"

namespace prefixd::cli {
namespace {

using ::testing::HasSubstr;

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

// T5: whose salted cache a file holds it does not tell, and who imports it must know.
TEST_F(CarryTest, AFileOfASaltedSpaceGoesNowhereWithoutTheSalt) {
  Write("raw.safetensors", Raw(300, 300));
  environment_["PREFIXD_SALT"] = "user-4711";
  ASSERT_EQ(ImportWithFlags("raw.safetensors").exit_code, kExitOk);
  const std::string space = SpaceId();
  environment_.clear();
  const std::vector<std::string> save = {"export", PathOf("out.safetensors"), "--space",
                                         space,    "--tokens-file",           PathOf("ids.json")};
  EXPECT_THAT(Run(save).err, HasSubstr("give it by --salt or $PREFIXD_SALT, prefixd shows none"));
  EXPECT_FALSE(std::filesystem::exists(PathOf("out.safetensors")));
  std::vector<std::string> salted = save;
  salted.insert(salted.end(), {"--salt", "user-4711"});
  ASSERT_EQ(Run(salted).exit_code, kExitOk);
  std::ifstream file(PathOf("out.safetensors"), std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(bytes, ::testing::Not(HasSubstr("user-4711")));
  ASSERT_EQ(Run({"clear", "--all", "--yes"}).exit_code, kExitOk);
  const Ran bare = Run({"import", PathOf("out.safetensors")});
  EXPECT_EQ(bare.exit_code, kExitRefused);
  EXPECT_THAT(bare.err, HasSubstr("the identity has a salt, of digest "));
  EXPECT_THAT(Run({"--salt", "user-4712", "import", PathOf("out.safetensors")}).err,
              HasSubstr("is another"));
  const Ran import = Run({"--salt", "user-4711", "--json", "import", PathOf("out.safetensors")});
  ASSERT_EQ(import.exit_code, kExitOk) << import.err;
  EXPECT_EQ(nlohmann::json::parse(import.out)["space_id"], space);
}

// T5
TEST_F(CarryTest, AFileWithoutASaltIsImportedWithoutOne) {
  Write("raw.safetensors", Raw(300, 300));
  ASSERT_EQ(ImportWithFlags("raw.safetensors").exit_code, kExitOk);
  const std::string space = SpaceId();
  environment_["PREFIXD_SALT"] = "user-4711";
  ASSERT_EQ(Run({"export", PathOf("out.safetensors"), "--space", space, "--tokens-file",
                 PathOf("ids.json")})
                .exit_code,
            kExitOk);
  const Ran import = Run({"--json", "import", PathOf("out.safetensors")});
  ASSERT_EQ(import.exit_code, kExitOk) << import.err;
  EXPECT_EQ(nlohmann::json::parse(import.out)["space_id"], space);
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
  cache.layers[1].meta = {"299"};
  Write("differ.safetensors", cache);
  EXPECT_THAT(ImportWithFlags("differ.safetensors").err,
              HasSubstr("layer 1 has 299 tokens, others have 300"));
  EXPECT_THAT(ImportWithFlags("absent.safetensors").err, HasSubstr("absent.safetensors"));
  EXPECT_EQ(Run({"export", "x", "--tokens", "1"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"export", "x", "--space", "3f"}).exit_code, kExitUsage);
  EXPECT_THAT(Run({"export", "x", "--space", "3f", "--tokens", "1", "--style", "new"}).err,
              HasSubstr("accepted: mlx-lm-0.32, meta-state"));
  EXPECT_THAT(Run({"export", "x", "--space", "3f", "--tokens", "1", "--format", "gguf"}).err,
              HasSubstr("accepted: mlx-lm, llama.cpp"));
  EXPECT_THAT(
      Run({"export", "x", "--space", "3f", "--tokens", "1", "--format", "llama.cpp", "--like", "y"})
          .err,
      HasSubstr("--style and --like are of mlx-lm's files"));
  EXPECT_THAT(
      ReadIdentity(R"({"model": "m", "layers": [{"kind": "chunked"}]})").status().ToString(),
      HasSubstr("accepted: full, sliding, state"));
  EXPECT_THAT(ReadIdentity(R"({"model": "m", "weight_digest": ""})").status().ToString(),
              HasSubstr("weight_digest is not a field of it"));
  EXPECT_THAT(ReadIdentity(R"({"model": "m", "weights_digest": "ab"})").status().ToString(),
              HasSubstr("64 hexadecimal digits"));
}

TEST(IdentityFileTest, SpacesWithoutCachesOfTheirOwnToExchangeAreRefusedByName) {
  const auto refused = [](const std::function<void(SpaceSpec&)>& change) {
    SpaceSpec spec = SmallSpace(MlxAffine(8, 64, 8, 64, Dtype::kBf16));
    change(spec);
    const auto identity = client::IdentityOf(spec);
    return identity.ok() ? SpecOf(wire::ToProto(*identity)).status() : identity.status();
  };
  EXPECT_TRUE(refused([](SpaceSpec&) {}).ok());
  EXPECT_THAT(refused([](SpaceSpec& s) { s.layers.push_back({.reads_layer = 0}); }).ToString(),
              HasSubstr("reads the cache of layer 0: such spaces are not imported or exported"));
  EXPECT_THAT(refused([](SpaceSpec& s) { s.tensor_parallel = 2; }).ToString(),
              HasSubstr("spaces of several ranks"));
}

TEST(IdentityFileTest, AnIdentityReadsBackWhatWasWritten) {
  SpaceSpec spec = SmallSpace(MlxAffine(8, 64, 4, 32, Dtype::kBf16));
  spec.rope = {.theta = 5e5, .scaling = "llama3", .scaling_params = {8, 1, 4}, .rotary_dim = 64};
  spec.salt = "s";
  spec.block_tokens = 32;
  LayerSpec sliding = spec.layers[0];
  sliding.kind = LayerKind::kSliding;
  sliding.window = 100;
  sliding.sink_tokens = 4;
  spec.layers.push_back(sliding);
  spec.layers.push_back({.kind = LayerKind::kState, .state_bytes = 1000});
  const absl::StatusOr<SpaceSpec> read = ReadIdentity(WriteIdentity(spec), "s");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(WriteIdentity(*read), WriteIdentity(spec));
  EXPECT_EQ(read->salt, "s");
  EXPECT_EQ(read->layers.size(), 5u);
  EXPECT_EQ(read->layers[3].kind, LayerKind::kSliding);
  EXPECT_EQ(read->layers[3].window, 100u);
  EXPECT_EQ(read->layers[3].sink_tokens, 4u);
  EXPECT_EQ(read->layers[4].kind, LayerKind::kState);
  EXPECT_EQ(read->layers[4].state_bytes, 1000u);
  EXPECT_EQ(read->rope.scaling_params, spec.rope.scaling_params);
}

}  // namespace
}  // namespace prefixd::cli
