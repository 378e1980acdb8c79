// prefixctl against a real daemon in this process, and prompt-cache files to give to it.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

#include "client/cli/commands.h"
#include "interop/prompt_cache.h"
#include "tests/client/daemon.h"

namespace prefixd::cli {

using interop::Array;
using interop::MlxCache;
using interop::PromptCache;
using interop::PromptCacheStyle;
using interop::TensorDtype;

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
    Surroundings surroundings{
        .environment = {{"PREFIXD_SERVER", directory_.address()}},
        .exists = [](const std::string&) { return false; },
        .writable = [](const std::string& path) { return std::filesystem::exists(path); }};
    surroundings.environment.insert(environment_.begin(), environment_.end());
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
  std::map<std::string, std::string> environment_;  // more of prefixctl's
};

}  // namespace prefixd::cli
