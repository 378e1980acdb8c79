// prefixctl import and export of what is not full attention, and of llama.cpp's states.
#include "interop/llama_state.h"
#include "tests/cli/carry_fixture.h"

namespace prefixd::cli {
namespace {

using interop::KvRows;
using ::testing::HasSubstr;

Array None() { return {.dtype = TensorDtype::kF32, .shape = {0}}; }

class CarryKindsTest : public CarryTest {
 protected:
  // K and V of 2 heads in `rows` slots.
  static MlxCache Rotating(uint64_t rows, const std::vector<std::string>& meta, uint32_t seed) {
    return {.class_name = "RotatingKVCache",
            .state = {{"0", Random(TensorDtype::kF16, {1, 2, rows, 64}, seed)},
                      {"1", Random(TensorDtype::kF16, {1, 2, rows, 64}, seed + 1)}},
            .meta = meta};
  }
  static MlxCache QuantizedRotating(uint64_t rows, const std::vector<std::string>& meta) {
    MlxCache cache{.class_name = "QuantizedRotatingKVCache", .state = {}, .meta = meta};
    for (const char* side : {"0", "1"}) {
      cache.state[absl::StrCat(side, ".0")] = Random(TensorDtype::kU32, {1, 2, rows, 16}, 90);
      for (const char* part : {".1", ".2"}) {
        cache.state[absl::StrCat(side, part)] = Random(TensorDtype::kBf16, {1, 2, rows, 1}, 91);
      }
    }
    return cache;
  }
  static MlxCache Arrays(uint32_t seed) {
    return {.class_name = "ArraysCache",
            .state = {{"0.0", Random(TensorDtype::kF16, {1, 3, 40}, seed)},
                      {"0.1", Random(TensorDtype::kF32, {1, 4, 8, 8}, seed + 1)},
                      {"0.2", None()},
                      {"1", None()},
                      {"2", None()}}};
  }
  // Full, wrapped, recurrent, and a list of full and not yet wrapped.
  static PromptCache Hybrid(uint32_t seed, PromptCacheStyle style) {
    PromptCache cache = Raw(512, 300);
    cache.style = style;
    if (style == PromptCacheStyle::kMetaState) {
      for (MlxCache& layer : cache.layers) {
        layer.meta.clear();
        for (const char* side : {"0", "1"}) layer.state[side] = Head(layer.state[side], 300);
      }
    }
    MlxCache list{.class_name = "CacheList"};
    list.children = {cache.layers[1], Rotating(300, {"0", "512", "300", "300"}, seed)};
    cache.layers.pop_back();
    cache.layers.push_back(Rotating(100, {"4", "100", "300", "40"}, seed + 2));
    cache.layers.push_back(Arrays(seed + 4));
    cache.layers.push_back(list);
    return cache;
  }
  // [1, heads, slots, dim] cut to its first slots.
  static Array Head(const Array& array, uint64_t slots) {
    const uint64_t heads = array.shape[1], row = array.shape[3] * interop::BytesOf(array.dtype);
    std::vector<std::byte> bytes;
    for (uint64_t head = 0; head < heads; ++head) {
      const auto from = array.bytes.subspan(head * array.shape[2] * row, slots * row);
      bytes.insert(bytes.end(), from.begin(), from.end());
    }
    Array cut{.dtype = array.dtype, .shape = {1, heads, slots, array.shape[3]}};
    cut.memory = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    cut.bytes = *cut.memory;
    return cut;
  }

  Ran Export(const std::string& file, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"export",  PathOf(file),    "--force",         "--space",
                                          SpaceId(), "--tokens-file", PathOf("ids.json")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments);
  }

  static void ExpectSameRows(const MlxCache& wanted, const MlxCache& seen) {
    const auto a = interop::ReadKvRows(wanted), b = interop::ReadKvRows(seen);
    ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
    EXPECT_EQ(b->rows, a->rows);
    EXPECT_EQ(b->offset, a->offset);
    EXPECT_EQ(b->keep, a->keep);
    EXPECT_EQ(b->max_size, a->max_size);
    for (const auto tensor : {&KvRows::key, &KvRows::value}) {
      EXPECT_TRUE((*b.*tensor).format == (*a.*tensor).format);
      EXPECT_TRUE((*b.*tensor).codes == (*a.*tensor).codes);
      EXPECT_TRUE((*b.*tensor).scales == (*a.*tensor).scales);
      EXPECT_TRUE((*b.*tensor).biases == (*a.*tensor).biases);
    }
  }
  static void ExpectSame(const MlxCache& wanted, const MlxCache& seen) {
    EXPECT_EQ(seen.class_name, wanted.class_name);
    ASSERT_EQ(seen.children.size(), wanted.children.size());
    for (size_t i = 0; i < wanted.children.size(); ++i) {
      ExpectSame(wanted.children[i], seen.children[i]);
    }
    if (!wanted.children.empty()) return;
    if (wanted.class_name != "ArraysCache") return ExpectSameRows(wanted, seen);
    ASSERT_EQ(seen.state.size(), wanted.state.size());
    for (const auto& [path, array] : wanted.state) {
      const Array& other = seen.state.at(path);
      EXPECT_EQ(other.dtype, array.dtype) << path;
      EXPECT_EQ(other.shape, array.shape) << path;
      EXPECT_TRUE(std::ranges::equal(other.bytes, array.bytes)) << path;
    }
  }
  PromptCache Read(const std::string& name) const {
    auto cache = interop::ReadPromptCache(PathOf(name));
    EXPECT_TRUE(cache.ok()) << cache.status();
    return cache.ok() ? *std::move(cache) : PromptCache{};
  }
};

// S2-09
TEST_F(CarryKindsTest, EveryKindOfCacheComesBackByteForByteAtItsExactOffset) {
  for (const auto style : {PromptCacheStyle::kScalars, PromptCacheStyle::kMetaState}) {
    ASSERT_EQ(Run({"clear", "--all", "--yes"}).exit_code, kExitOk);
    const PromptCache hybrid = Hybrid(1, style);
    Write("hybrid.safetensors", hybrid);
    Write("like.safetensors", Hybrid(50, style));
    const Ran import = ImportWithFlags("hybrid.safetensors");
    ASSERT_EQ(import.exit_code, kExitOk) << import.err;
    EXPECT_THAT(import.out, HasSubstr("imported 300 tokens in raw/f16"));
    EXPECT_THAT(import.out, HasSubstr(": 300 stored, 0 known already\n"));
    const bool old_style = style == PromptCacheStyle::kMetaState;
    const Ran save = Export("out.safetensors", {"--like", PathOf("like.safetensors"), "--style",
                                                old_style ? "meta-state" : "mlx-lm-0.32"});
    ASSERT_EQ(save.exit_code, kExitOk) << save.err;
    const PromptCache out = Read("out.safetensors");
    ASSERT_EQ(out.layers.size(), hybrid.layers.size());
    for (size_t i = 0; i < out.layers.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("layer ", i));
      ExpectSame(hybrid.layers[i], out.layers[i]);
    }
  }
}

// A record and a state are right after 300 tokens, and nowhere before.
TEST_F(CarryKindsTest, WhatHasWrappedIsNoPrefix) {
  const PromptCache hybrid = Hybrid(1, PromptCacheStyle::kScalars);
  Write("hybrid.safetensors", hybrid);
  ASSERT_EQ(ImportWithFlags("hybrid.safetensors").exit_code, kExitOk);
  std::vector<uint32_t> longer = tokens_;
  longer.push_back(5);
  for (const auto& [tokens, exit_code] :
       {std::pair(std::vector(tokens_.begin(), tokens_.end() - 1), kExitNothing),
        std::pair(longer, kExitOk)}) {
    const Ran save =
        Run({"export", PathOf("out.safetensors"), "--force", "--space", SpaceId(), "--tokens",
             absl::StrJoin(tokens, ","), "--like", PathOf("hybrid.safetensors")});
    EXPECT_EQ(save.exit_code, exit_code) << save.err;
  }
  EXPECT_THAT(ImportWithFlags("hybrid.safetensors").out,
              HasSubstr(": 0 stored, 300 known already\n"));
}

// The file that export writes says whose it is, of every kind of layer.
TEST_F(CarryKindsTest, AnExportedHybridIsImportedElsewhereByItself) {
  const PromptCache hybrid = Hybrid(1, PromptCacheStyle::kScalars);
  Write("hybrid.safetensors", hybrid);
  ASSERT_EQ(ImportWithFlags("hybrid.safetensors").exit_code, kExitOk);
  const std::string space = SpaceId();
  ASSERT_EQ(Export("out.safetensors", {"--like", PathOf("hybrid.safetensors")}).exit_code, kExitOk);
  ASSERT_EQ(Run({"clear", "--all", "--yes"}).exit_code, kExitOk);
  const Ran import = Run({"--json", "import", PathOf("out.safetensors")});
  ASSERT_EQ(import.exit_code, kExitOk) << import.err;
  EXPECT_EQ(nlohmann::json::parse(import.out)["space_id"], space);
  EXPECT_EQ(nlohmann::json::parse(import.out)["stored_tokens"], 300);
}

// As mlx-lm has it after a prompt: all of its rows are there still, and any of them is a prefix.
TEST_F(CarryKindsTest, ASlidingLayerIsExportedAsItsSinksAndItsWindow) {
  PromptCache cache = Raw(300, 300);
  cache.layers[1] = Rotating(300, {"4", "100", "300", "300"}, 7);
  Write("prompt.safetensors", cache);
  ASSERT_EQ(ImportWithFlags("prompt.safetensors").exit_code, kExitOk);
  const auto rows = interop::ReadKvRows(cache.layers[1]);
  ASSERT_TRUE(rows.ok());
  for (const uint32_t tokens : {300u, 200u, 90u}) {
    const std::vector<uint32_t> prefix(tokens_.begin(), tokens_.begin() + tokens);
    const Ran save = Run({"export", PathOf("out.safetensors"), "--force", "--space", SpaceId(),
                          "--tokens", absl::StrJoin(prefix, ",")});
    ASSERT_EQ(save.exit_code, kExitOk) << save.err;
    EXPECT_THAT(save.out, HasSubstr(absl::StrCat("exported ", tokens, " of ", tokens)));
    const auto seen = interop::ReadKvRows(Read("out.safetensors").layers[1]);
    ASSERT_TRUE(seen.ok()) << seen.status();
    EXPECT_EQ(seen->rows, std::min(tokens, 100u));
    EXPECT_EQ(seen->offset, tokens);
    EXPECT_EQ(seen->keep, 4u);
    EXPECT_EQ(seen->max_size, 100u);
    for (uint32_t head = 0; head < 2; ++head) {
      for (uint32_t row = 0; row < seen->rows; ++row) {
        const size_t from = (head * 300 + seen->PositionOf(row)) * 128,
                     to = (head * size_t{seen->rows} + row) * 128;
        EXPECT_TRUE(std::equal(seen->key.codes.begin() + static_cast<ptrdiff_t>(to),
                               seen->key.codes.begin() + static_cast<ptrdiff_t>(to + 128),
                               rows->key.codes.begin() + static_cast<ptrdiff_t>(from)))
            << "head " << head << ", row " << row << " of " << tokens;
      }
    }
  }
}

TEST_F(CarryKindsTest, AQuantizedWindowKeepsItsScales) {
  PromptCache cache;
  cache.layers = {QuantizedRotating(100, {"4", "100", "300", "40", "64", "8", "64", "8"})};
  Write("q.safetensors", cache);
  ASSERT_EQ(ImportWithFlags("q.safetensors").exit_code, kExitOk);
  const Ran save =
      Export("out.safetensors", {"--like", PathOf("q.safetensors"), "--style", "meta-state"});
  ASSERT_EQ(save.exit_code, kExitOk) << save.err;
  ExpectSame(cache.layers[0], Read("out.safetensors").layers[0]);
}

TEST_F(CarryKindsTest, KindsThatDoNotFitAreRefusedByName) {
  PromptCache cache = Raw(300, 300);
  cache.layers[1] = Rotating(300, {"4", "100", "300", "300"}, 7);
  Write("prompt.safetensors", cache);
  ASSERT_EQ(ImportWithFlags("prompt.safetensors").exit_code, kExitOk);
  const auto refused = [&](const MlxCache& second) {
    PromptCache other = Raw(300, 300);
    other.style = PromptCacheStyle::kMetaState;
    for (MlxCache& layer : other.layers) layer.meta.clear();
    other.layers[1] = second;
    Write("other.safetensors", other);
    const Ran import = Run({"import", PathOf("other.safetensors"), "--space", SpaceId(),
                            "--tokens-file", PathOf("ids.json")});
    EXPECT_EQ(import.exit_code, kExitRefused);
    return import.err;
  };
  EXPECT_THAT(refused(Rotating(100, {"4", "100", "300", "40"}, 7)),
              HasSubstr("layer 1 is a rotating cache that has wrapped at token 300, a state of "
                        "51200 bytes there and no prefix, the space has a window of 96 tokens and "
                        "the first 4"));
  EXPECT_THAT(refused(Arrays(1)), HasSubstr("layer 1 is a state of 1264 bytes, the space has a "
                                            "window of 96 tokens"));
  EXPECT_THAT(refused(Rotating(300, {"4", "128", "300", "300"}, 7)),
              HasSubstr("layer 1 is a window of 124 tokens and the first 4, the space has"));
  EXPECT_THAT(refused(Rotating(60, {"4", "100", "300", "40"}, 7)),
              HasSubstr("layer 1: window record: a cache of at most 100 tokens holds 60 at"));
  MlxCache chunked = cache.layers[0];
  chunked.class_name = "ChunkedKVCache";
  EXPECT_THAT(refused(chunked), HasSubstr("layer 1: mlx cache: ChunkedKVCache"));
  EXPECT_THAT(Export("x.safetensors", {"--like", PathOf("other.safetensors")}).err,
              HasSubstr("layer 1: slides, the file of --like has a ChunkedKVCache"));
  EXPECT_THAT(Export("x.safetensors", {"--like", PathOf("absent.safetensors")}).err,
              HasSubstr("absent.safetensors"));
  PromptCache more = cache;
  more.layers.push_back(cache.layers[0]);
  Write("more.safetensors", more);
  EXPECT_THAT(Export("x.safetensors", {"--like", PathOf("more.safetensors")}).err,
              HasSubstr("has more caches than the space layers: 2"));

  ASSERT_EQ(Run({"clear", "--all", "--yes"}).exit_code, kExitOk);
  Write("hybrid.safetensors", Hybrid(1, PromptCacheStyle::kScalars));
  const Ran import = Run({"--json", "import", PathOf("hybrid.safetensors"), "--identity",
                          PathOf("identity.json"), "--tokens-file", PathOf("ids.json")});
  ASSERT_EQ(import.exit_code, kExitOk) << import.err;
  const std::string space = nlohmann::json::parse(import.out)["space_id"];
  const auto save = [&](const std::vector<std::string>& more_flags) {
    std::vector<std::string> arguments = {"export", PathOf("x.safetensors"), "--space",
                                          space,    "--tokens-file",         PathOf("ids.json")};
    arguments.insert(arguments.end(), more_flags.begin(), more_flags.end());
    return Run(arguments).err;
  };
  EXPECT_THAT(save({}), HasSubstr("layer 1: keeps a state of 51200 bytes: of which arrays"));
  EXPECT_THAT(save({"--like", PathOf("prompt.safetensors")}),
              HasSubstr("the file of --like has 2 caches, the space 5 layers"));
  PromptCache smaller = Hybrid(1, PromptCacheStyle::kScalars);
  smaller.layers[1] = Rotating(90, {"4", "90", "300", "40"}, 7);
  Write("smaller.safetensors", smaller);
  EXPECT_THAT(save({"--like", PathOf("smaller.safetensors")}),
              HasSubstr("layer 1: window record: of 51200 bytes, 90 tokens in raw/f16 have 46080"));
  EXPECT_FALSE(std::filesystem::exists(PathOf("x.safetensors")));
}

// --- llama.cpp

constexpr char kLlamaIdentity[] =
    R"({"model": "llama", "weights_digest": ")"
    "abababababababababababababababababababababababababababababababab"
    R"(", "layers": [{"count": 3, "kv_heads": 2, "key_dim": 64, "value_dim": 128}]})";

class LlamaCarryTest : public CarryTest {
 protected:
  LlamaCarryTest() { std::ofstream(PathOf("llama.json")) << kLlamaIdentity; }

  // As llama.cpp would have saved it.
  std::vector<std::byte> Blob(const quant::TensorFormat& key, const quant::TensorFormat& value,
                              bool transposed) const {
    interop::LlamaState state{.tokens = tokens_, .layers = {}, .values_transposed = transposed};
    const auto count = static_cast<uint32_t>(tokens_.size());
    const auto random = [&](const quant::TensorFormat& format, uint32_t dim, uint64_t seed) {
      const uint64_t bytes = uint64_t{2} * count * quant::BytesOfStoredRow(format, dim).codes;
      const Array array = Random(TensorDtype::kU8, {bytes}, static_cast<uint32_t>(seed));
      return interop::RowsOfTensor{format, dim, {array.bytes.begin(), array.bytes.end()}, {}, {}};
    };
    for (uint32_t layer = 0; layer < 3; ++layer) {
      interop::KvRows& rows = state.layers.emplace_back();
      rows.kv_heads = 2;
      rows.rows = rows.offset = count;
      rows.key = random(key, 64, layer);
      rows.value = random(value, 128, 10 + layer);
    }
    const auto blob = interop::WriteLlamaState(state);
    EXPECT_TRUE(blob.ok()) << blob.status();
    return blob.ok() ? *blob : std::vector<std::byte>();
  }
  void WriteBlob(const std::string& name, const std::vector<std::byte>& blob) const {
    std::ofstream(PathOf(name), std::ios::binary)
        .write(reinterpret_cast<const char*>(blob.data()),
               static_cast<std::streamsize>(blob.size()));
  }
  std::vector<std::byte> ReadBlob(const std::string& name) const {
    std::ifstream file(PathOf(name), std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
  }
  Ran Import(const std::string& name, const std::string& identity = "llama.json") {
    return Run({"--json", "import", PathOf(name), "--format", "llama.cpp", "--identity",
                PathOf(identity)});
  }
};

TEST_F(LlamaCarryTest, StatesComeBackByteForByteWithValuesTransposedOrNot) {
  const quant::TensorFormat f16 = quant::RawFormat(quant::Dtype::kF16);
  const quant::TensorFormat q8 = quant::GgmlFormat(quant::Codec::kQ8_0);
  const quant::TensorFormat q4 = quant::GgmlFormat(quant::Codec::kQ4_0);
  const struct {
    quant::TensorFormat key, value;
    bool transposed;
  } cases[] = {{f16, f16, false}, {f16, f16, true}, {q8, q4, false}, {q8, f16, true}};
  for (const auto& c : cases) {
    SCOPED_TRACE(quant::ToString(quant::KvFormat{c.key, c.value}));
    const std::vector<std::byte> blob = Blob(c.key, c.value, c.transposed);
    WriteBlob("state.bin", blob);
    const Ran import = Import("state.bin");
    ASSERT_EQ(import.exit_code, kExitOk) << import.err;
    const nlohmann::json json = nlohmann::json::parse(import.out);
    EXPECT_EQ(json["stored_tokens"], 300);
    const Ran save = Run({"export", PathOf("out.bin"), "--force", "--format", "llama.cpp",
                          "--space", json["space_id"], "--tokens-file", PathOf("ids.json")});
    ASSERT_EQ(save.exit_code, kExitOk) << save.err;
    EXPECT_TRUE(ReadBlob("out.bin") == blob);
  }
}

TEST_F(LlamaCarryTest, AStateIsExportedAsFarAsItIsCached) {
  const quant::TensorFormat f16 = quant::RawFormat(quant::Dtype::kF16);
  WriteBlob("state.bin", Blob(f16, f16, false));
  const Ran import = Import("state.bin");
  ASSERT_EQ(import.exit_code, kExitOk) << import.err;
  std::vector<uint32_t> other = tokens_;
  other[171] += 1;
  const Ran save = Run({"export", PathOf("out.bin"), "--force", "--format", "llama.cpp", "--space",
                        SpaceId(), "--tokens", absl::StrJoin(other, ",")});
  ASSERT_EQ(save.exit_code, kExitOk) << save.err;
  const std::vector<interop::LlamaLayerShape> shapes(
      3, {.kv_heads = 2, .key_dim = 64, .value_dim = 128});
  const auto whole = interop::ReadLlamaState(ReadBlob("state.bin"), shapes);
  const auto cut = interop::ReadLlamaState(ReadBlob("out.bin"), shapes);
  ASSERT_TRUE(whole.ok() && cut.ok()) << whole.status() << cut.status();
  EXPECT_EQ(cut->tokens, std::vector<uint32_t>(tokens_.begin(), tokens_.begin() + 171));
  for (size_t i = 0; i < 3; ++i) {
    interop::KvRows rows = whole->layers[i];
    ASSERT_TRUE(interop::Cut(171, &rows).ok());
    EXPECT_TRUE(cut->layers[i].key.codes == rows.key.codes);
    EXPECT_TRUE(cut->layers[i].value.codes == rows.value.codes);
  }
}

TEST_F(LlamaCarryTest, StatesThatDoNotFitAreRefusedByName) {
  const quant::TensorFormat f16 = quant::RawFormat(quant::Dtype::kF16);
  const std::vector<std::byte> blob = Blob(f16, f16, false);
  WriteBlob("state.bin", blob);
  WriteBlob("short.bin", {blob.begin(), blob.end() - 1});
  EXPECT_THAT(Import("short.bin").err, HasSubstr("short.bin: llama state: ends in rows"));
  EXPECT_THAT(Import("absent.bin").err, HasSubstr("absent.bin: cannot be read"));
  EXPECT_THAT(Import("state.bin", "identity.json").err,
              HasSubstr("does not say its heads and dims"));
  EXPECT_THAT(Run({"import", PathOf("state.bin"), "--format", "llama.cpp", "--identity",
                   PathOf("llama.json"), "--tokens", "1,2,3"})
                  .err,
              HasSubstr("holds 300 tokens, 3 token ids are given"));
  std::ofstream(PathOf("heads.json"))
      << R"({"model": "m", "layers": [{"count": 3, "kv_heads": 4, "key_dim": 64, )"
         R"("value_dim": 128}]})";
  EXPECT_THAT(Import("state.bin", "heads.json").err, HasSubstr("row size is 256, expected 512"));
  std::ofstream(PathOf("sliding.json"))
      << R"({"model": "m", "layers": [{"kind": "sliding", "window": 8, "kv_heads": 4}]})";
  EXPECT_THAT(Import("state.bin", "sliding.json").err,
              HasSubstr("layer 0 of the space is not full attention"));
  Write("q.safetensors", Quantized(300));
  ASSERT_EQ(ImportWithFlags("q.safetensors").exit_code, kExitOk);
  EXPECT_THAT(Run({"export", PathOf("out.bin"), "--force", "--format", "llama.cpp", "--space",
                   SpaceId(), "--tokens-file", PathOf("ids.json")})
                  .err,
              HasSubstr("out.bin: llama state: llama.cpp has no type for mlx_affine"));
  EXPECT_FALSE(std::filesystem::exists(PathOf("out.bin")));
}

}  // namespace
}  // namespace prefixd::cli
