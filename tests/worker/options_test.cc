#include "client/worker/options.h"

#include <gtest/gtest.h>

#include <sstream>

#include "base/version.h"

namespace prefixd::worker {
namespace {

struct Parsed {
  std::optional<int> exit_code;
  Options options;
  std::string out, err;
};

Parsed Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "prefixd-worker");
  Parsed parsed;
  std::ostringstream out;
  std::ostringstream err;
  parsed.exit_code = ParseCommandLine(static_cast<int>(arguments.size()), arguments.data(),
                                      &parsed.options, out, err);
  parsed.out = out.str();
  parsed.err = err.str();
  return parsed;
}

// The refusal of these arguments after a model and a prompt.
std::string Refusal(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), {"--model", "m", "--prompt", "p"});
  const Parsed parsed = Parse(arguments);
  EXPECT_EQ(parsed.exit_code, kExitUsage);
  EXPECT_EQ(parsed.out, "");
  return parsed.err;
}

TEST(OptionsTest, AModelAndAPromptAreEnough) {
  const Parsed parsed = Parse({"--model", "m", "--prompt", "In the beginning"});
  ASSERT_FALSE(parsed.exit_code.has_value()) << parsed.err;
  const Options& options = parsed.options;
  EXPECT_EQ(options.server, "unix:///run/prefixd/prefixd.sock");
  EXPECT_EQ(options.model, "m");
  EXPECT_EQ(options.prompt, "In the beginning");
  EXPECT_EQ(options.max_tokens, 64U);
  EXPECT_EQ(options.temperature, 0);
  EXPECT_TRUE(options.use_arena);
  EXPECT_EQ(options.staging_bytes, 64U << 20);
  EXPECT_EQ(Describe(options.kv_format), "raw f32");
  EXPECT_GE(options.threads, 1U);
  EXPECT_FALSE(options.json);
}

TEST(OptionsTest, EveryFlagIsHeard) {
  const Parsed parsed = Parse({"--synthetic", "qwen3-0.6b", "--layers",        "2",
                               "--tokens",    "1,2,3",      "--server",        "127.0.0.1:7777",
                               "--name",      "w7",         "--max-tokens",    "5",
                               "--kv-bits",   "8,4",        "--kv-group-size", "64,32",
                               "--kv-dtype",  "bf16",       "--temperature",   "0.7",
                               "--seed",      "9",          "--threads",       "3",
                               "--json",      "--no-arena", "--staging",       "3MiB"});
  ASSERT_FALSE(parsed.exit_code.has_value()) << parsed.err;
  const Options& options = parsed.options;
  EXPECT_FALSE(options.use_arena);
  EXPECT_EQ(options.staging_bytes, 3U << 20);
  EXPECT_EQ(options.synthetic, "qwen3-0.6b");
  EXPECT_EQ(options.layers, 2U);
  EXPECT_EQ(options.tokens, (std::vector<uint32_t>{1, 2, 3}));
  EXPECT_EQ(options.server, "127.0.0.1:7777");
  EXPECT_EQ(options.name, "w7");
  EXPECT_EQ(options.max_tokens, 5U);
  EXPECT_EQ(Describe(options.kv_format),
            "keys 8-bit group 64, values 4-bit group 32 (bf16 scales), tiled");
  EXPECT_EQ(options.temperature, 0.7);
  EXPECT_EQ(options.seed, 9U);
  EXPECT_EQ(options.threads, 3U);
  EXPECT_TRUE(options.json);
}

TEST(OptionsTest, AnEmptyPromptIsAPromptForTheModelToRefuse) {
  const Parsed parsed = Parse({"--model", "m", "--prompt", ""});
  ASSERT_FALSE(parsed.exit_code.has_value()) << parsed.err;
  EXPECT_EQ(parsed.options.prompt, "");
}

TEST(OptionsTest, RefusalsNameTheFlagAndTheChoices) {
  const std::vector<std::pair<std::vector<const char*>, std::vector<std::string>>> cases = {
      {{"--kv-bits", "7"}, {"--kv-bits", "\"7\"", "2, 3, 4, 5, 6 or 8"}},
      {{"--kv-bits", "8", "--kv-group-size", "48"}, {"--kv-group-size", "48", "32, 64 or 128"}},
      {{"--kv-group-size", "64"}, {"--kv-group-size", "without --kv-bits"}},
      {{"--kv-dtype", "f8"}, {"--kv-dtype", "f32, f16 or bf16"}},
      {{"--kv-bits", "8", "--min-quantize-tokens", "-1"}, {"--min-quantize-tokens", "-1"}},
      {{"--min-quantize-tokens", "9"}, {"--min-quantize-tokens", "without --kv-bits"}},
      {{"--quantized-kv-start", "9"}, {"--quantized-kv-start", "without --kv-bits"}},
      {{"--kv-bits", "8", "--kv-cache-quantization"}, {"--kv-cache-quantization", "--kv-bits"}},
      {{"--kv-cache-quantization", "--kv-cache-quantization-bits", "5"}, {"4", "8"}},
      {{"--max-kv-size", "4"}, {"--max-kv-size", "4"}},
      {{"--server", "nowhere"}, {"--server", "nowhere", "unix:///", "none"}},
      {{"--threads", "0"}, {"--threads", "1"}},
      {{"--device", "gpu"}, {"--device", "\"gpu\"", "cpu, cuda or cuda:N"}},
      {{"--device", "cuda:-1"}, {"--device", "\"cuda:-1\""}},
      {{"--threads", "two"}, {"--threads", "two"}},
      {{"--max-tokens", "0"}, {"--max-tokens", "1"}},
      {{"--attention", "quick"}, {"--attention", "fast", "precise"}},
      {{"--verify-hits", "1.5"}, {"--verify-hits", "1.5"}},
      {{"--temperature", "-1"}, {"--temperature", "-1"}},
      {{"--layers", "2"}, {"--layers", "--synthetic"}},
      {{"--synthetic", "llama3-8b"}, {"--model", "--synthetic"}},
      {{"--synthetic", "gpt"}, {"--synthetic", "llama3-8b", "qwen3-0.6b"}},
      {{"--tokens", "1"}, {"--prompt", "--tokens"}},
      {{"--speed", "fast"}, {"--speed", "--help"}}};
  for (const auto& [arguments, words] : cases) {
    const std::string refusal = Refusal(arguments);
    for (const std::string& word : words) {
      EXPECT_NE(refusal.find(word), std::string::npos) << word << " is not in: " << refusal;
    }
  }
}

// S0-03 S3-03: of mlx-lm's server, 0.
TEST(OptionsTest, QuantizedKvStartKeepsTheBeginningRaw) {
  const Parsed none = Parse({"--model", "m", "--prompt", "p", "--kv-bits", "8"});
  EXPECT_EQ(none.options.quantize.start, 0U);
  EXPECT_EQ(none.options.kv_formats.size(), 1U);
  const Parsed parsed =
      Parse({"--model", "m", "--prompt", "p", "--kv-bits", "8", "--quantized-kv-start", "5000"});
  EXPECT_EQ(parsed.options.quantize.start, 5000U);
  ASSERT_EQ(parsed.options.kv_formats.size(), 2U);
  EXPECT_EQ(Describe(parsed.options.kv_formats[0]), "raw f16");
  EXPECT_EQ(Describe(parsed.options.kv_formats[1]), "8-bit group 64 (f16 scales), tiled");
}

// S1-01 S1-02 S1-03 S1-04: vllm-mlx's flags with vllm-mlx's defaults.
TEST(OptionsTest, FlagsOfVllmMlxHaveItsDefaults) {
  const Parsed off = Parse({"--model", "m", "--prompt", "p"});
  EXPECT_EQ(Describe(off.options.kv_format), "raw f32");
  const Parsed on = Parse({"--model", "m", "--prompt", "p", "--kv-cache-quantization"});
  ASSERT_FALSE(on.exit_code.has_value()) << on.err;
  EXPECT_EQ(Describe(on.options.kv_format), "8-bit group 64 (f16 scales), tiled");
  EXPECT_EQ(on.options.quantize.min_tokens, 256U);
  const Parsed told = Parse(
      {"--model", "m", "--prompt", "p", "--kv-cache-quantization", "--kv-cache-quantization-bits",
       "4", "--kv-cache-quantization-group-size", "32", "--kv-cache-min-quantize-tokens", "0"});
  ASSERT_FALSE(told.exit_code.has_value()) << told.err;
  EXPECT_EQ(Describe(told.options.kv_format), "4-bit group 32 (f16 scales), tiled");
  EXPECT_FALSE(told.options.quantize.mixes());
}

TEST(OptionsTest, TheDeviceIsTheCpuOrAGpuByItsNumber) {
  const auto gpu = [](const char* device) {
    return Parse({"--model", "m", "--prompt", "p", "--device", device}).options.gpu;
  };
  EXPECT_EQ(Parse({"--model", "m", "--prompt", "p"}).options.gpu, std::nullopt);
  EXPECT_EQ(gpu("cpu"), std::nullopt);
  EXPECT_EQ(gpu("cuda"), 0);
  EXPECT_EQ(gpu("cuda:3"), 3);
}

TEST(OptionsTest, AModelAndAPromptAreNeeded) {
  EXPECT_EQ(Parse({}).exit_code, kExitUsage);
  EXPECT_EQ(Parse({"--model", "m"}).exit_code, kExitUsage);
  EXPECT_EQ(Parse({"--prompt", "p"}).exit_code, kExitUsage);
}

TEST(OptionsTest, HelpGoesToStandardOutputAndSaysTheDefaults) {
  EXPECT_EQ(Parse({"--version"}).out, std::string("prefixd-worker ") + kVersion + "\n");
  const Parsed parsed = Parse({"--help"});
  EXPECT_EQ(parsed.exit_code, kExitOk);
  EXPECT_EQ(parsed.err, "");
  for (const char* word : {"--kv-bits", "raw, not quantized", "unix:///run/prefixd/prefixd.sock",
                           "--prompts-file", "llama3-8b", "byte for byte"}) {
    EXPECT_NE(parsed.out.find(word), std::string::npos) << word;
  }
}

}  // namespace
}  // namespace prefixd::worker
