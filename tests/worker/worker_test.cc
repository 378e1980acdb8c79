// The worker from its command line to its reports, without prefixd (the e2e tests have one).
#include "client/worker/worker.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "nlohmann/json.hpp"

#include "tests/worker/shipped_model.h"

namespace prefixd::worker {
namespace {

using nlohmann::json;

struct Outcome {
  int exit_code = kExitOk;
  std::string out, err;
  std::vector<json> Lines() const {
    std::vector<json> lines;
    std::istringstream stream(out);
    for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
    return lines;
  }
};

Outcome RunCommand(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "prefixd-worker");
  Options options;
  std::ostringstream out;
  std::ostringstream err;
  const std::optional<int> exit_code =
      ParseCommandLine(static_cast<int>(arguments.size()), arguments.data(), &options, out, err);
  return {.exit_code = exit_code.has_value() ? *exit_code : RunWorker(options, out, err),
          .out = out.str(),
          .err = err.str()};
}

Outcome RunShipped(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), {"--model", kShippedModel.c_str(), "--threads", "2"});
  return RunCommand(arguments);
}

constexpr const char* kPrompt = "In the beginning God created the heaven";

TEST(WorkerTest, JsonReportHasEveryFieldOfARequest) {
  const Outcome outcome =
      RunShipped({"--server", "none", "--prompt", kPrompt, "--max-tokens", "8", "--json"});
  ASSERT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  ASSERT_EQ(outcome.Lines().size(), 1U);
  const json report = outcome.Lines()[0];
  EXPECT_EQ(report["prompt_tokens"], std::strlen(kPrompt));
  EXPECT_EQ(report["cached_tokens"], 0);
  EXPECT_EQ(report["used_tokens"], 0);
  EXPECT_EQ(report["ram_bytes"], 0);
  EXPECT_EQ(report["ssd_bytes"], 0);
  EXPECT_EQ(report["tokens"].size(), 8U);
  EXPECT_EQ(report["text"].get<std::string>().size(), 8U);
  for (const char* field :
       {"prefill_ms", "prefill_tokens_per_s", "first_token_ms", "tokens_per_s"}) {
    EXPECT_GT(report[field].get<double>(), 0) << field;
  }
  for (const char* field :
       {"id", "kind", "why_shorter", "matched_tokens", "load_ms", "load_estimate_ms",
        "store_wait_ms", "stored_tokens", "duplicate_tokens", "cache_error", "ended", "verified",
        "verify_error", "arena", "why_no_arena", "in_place", "pinned_bytes", "why_not_pinned"}) {
    EXPECT_TRUE(report.contains(field)) << field;
  }
  EXPECT_EQ(report["device"], "cpu");
  EXPECT_EQ(report["gpu"], "");
}

TEST(WorkerTest, PeopleReadTheSameInAFewLines) {
  const Outcome outcome = RunShipped(
      {"--server", "none", "--prompt", kPrompt, "--max-tokens", "8", "--kv-bits", "4,8"});
  ASSERT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  for (const char* word : {"prompt  39 tokens", "first token ", "tokens/s", "text    "}) {
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word << " is not in " << outcome.out;
  }
  for (const char* word : {"6 layers, hidden 320", "keys 4-bit group 64, values 8-bit group 64",
                           "none: --server none", "warning  --kv-bits 4,8"}) {
    EXPECT_NE(outcome.err.find(word), std::string::npos) << word << " is not in " << outcome.err;
  }
}

// A5: no daemon at all.
TEST(WorkerTest, WithoutPrefixdTheTextIsTheSame) {
  const Outcome none =
      RunShipped({"--server", "none", "--prompt", kPrompt, "--max-tokens", "24", "--json"});
  const Outcome absent = RunShipped({"--server", "unix:///nonexistent/prefixd.sock", "--prompt",
                                     kPrompt, "--max-tokens", "24", "--json"});
  ASSERT_EQ(none.exit_code, kExitOk) << none.err;
  ASSERT_EQ(absent.exit_code, kExitOk) << absent.err;
  EXPECT_EQ(absent.Lines()[0]["tokens"], none.Lines()[0]["tokens"]);
  EXPECT_NE(absent.err.find("no prefixd at unix:///nonexistent/prefixd.sock"), std::string::npos)
      << absent.err;
}

TEST(WorkerTest, ManyPromptsAreAnsweredInOrderAndABadOneFailsAlone) {
  const std::string path = testing::TempDir() + "/worker_test_prompts.jsonl";
  std::ofstream(path)
      << R"({"id": "a", "prompt": "And God said"})"
      << "\n"
      << R"({"id": "b", "tokens": [300]})"
      << "\n"
      << R"({"id": "c", "tokens": [65, 110, 100, 32, 71, 111, 100, 32, 115, 97, 105, 100]})";
  const Outcome outcome = RunShipped(
      {"--server", "none", "--prompts-file", path.c_str(), "--max-tokens", "6", "--json"});
  std::filesystem::remove(path);
  EXPECT_EQ(outcome.exit_code, kExitFailed);
  const std::vector<json> lines = outcome.Lines();
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0]["id"], "a");
  EXPECT_EQ(lines[1]["error"], "line 2: prompt: token 300 is not in the vocabulary of 256");
  EXPECT_EQ(lines[2]["id"], "c");
  EXPECT_EQ(lines[0]["tokens"], lines[2]["tokens"]);
}

TEST(WorkerTest, SampledTextDependsOnTheSeedAlone) {
  const auto sample = [](const char* seed) {
    return RunShipped({"--server", "none", "--prompt", kPrompt, "--max-tokens", "32",
                       "--temperature", "1", "--seed", seed, "--json"})
        .Lines()[0]["tokens"];
  };
  const json first = sample("5");
  EXPECT_EQ(sample("5"), first);
  EXPECT_NE(sample("6"), first);
}

// S0-03 S0-04 S1-04
TEST(WorkerTest, ARequestReportsWhatOfItsKvIsQuantized) {
  const std::string prompt(200, 'a');
  const auto tokens = [&](std::vector<const char*> flags) {
    flags.insert(flags.begin(),
                 {"--server", "none", "--prompt", prompt.c_str(), "--max-tokens", "1", "--json"});
    const json report = RunShipped(flags).Lines()[0];
    return std::pair(report["raw_kv_tokens"].get<int>(), report["quantized_kv_tokens"].get<int>());
  };
  EXPECT_EQ(tokens({}), std::pair(200, 0));
  EXPECT_EQ(tokens({"--kv-bits", "8"}), std::pair(0, 200));
  EXPECT_EQ(tokens({"--kv-bits", "8", "--quantized-kv-start", "128"}), std::pair(128, 72));
  EXPECT_EQ(tokens({"--kv-bits", "8", "--min-quantize-tokens", "201"}), std::pair(200, 0));
  EXPECT_EQ(tokens({"--kv-bits", "8", "--min-quantize-tokens", "200"}), std::pair(0, 200));
}

// S2-01 S2-02 S3-06: mlx-engine would ignore the size; here it holds, and the report says so.
TEST(WorkerTest, MaxKvSizeHoldsForQuantizedKvToo) {
  const Outcome outcome = RunShipped({"--server", "none", "--prompt", kPrompt, "--max-tokens", "2",
                                      "--kv-bits", "8,4", "--max-kv-size", "128"});
  ASSERT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  EXPECT_NE(outcome.err.find("context  the first 4 and the last 124 tokens, quantized: "
                             "--max-kv-size holds with --kv-bits"),
            std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("(0 full, 6 sliding)"), std::string::npos) << outcome.err;
}

TEST(WorkerTest, SyntheticModelsTakeTokenIds) {
  const Outcome outcome =
      RunCommand({"--synthetic", "qwen3-0.6b", "--layers", "1", "--server", "none", "--tokens",
                  "1,2,151935", "--max-tokens", "3", "--threads", "2"});
  ASSERT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  EXPECT_NE(outcome.out.find("tokens  "), std::string::npos) << outcome.out;
  const Outcome text = RunCommand(
      {"--synthetic", "qwen3-0.6b", "--layers", "1", "--server", "none", "--prompt", "hello"});
  EXPECT_EQ(text.exit_code, kExitFailed);
  EXPECT_NE(text.err.find("text needs a model whose tokens are bytes"), std::string::npos);
}

// On a host without a GPU: the library is not there, or it says that there is no driver or no such
// GPU.
TEST(WorkerTest, AGpuThatIsNotThereEndsTheProgramBeforeAnythingIsRead) {
  const Outcome outcome = RunCommand(
      {"--model", "/nonexistent", "--prompt", "x", "--server", "none", "--device", "cuda:9999"});
  EXPECT_EQ(outcome.exit_code, kExitUsage);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err.rfind("prefixd-worker: --device cuda: ", 0), 0U) << outcome.err;
  EXPECT_EQ(outcome.err.find("/nonexistent"), std::string::npos) << outcome.err;
}

TEST(WorkerTest, WhatCannotRunIsSaidInOneSentence) {
  const Outcome group =
      RunShipped({"--server", "none", "--prompt", "x", "--kv-bits", "8", "--kv-group-size", "128"});
  EXPECT_EQ(group.exit_code, kExitFailed);
  EXPECT_EQ(group.err, "prefixd-worker: --kv-group-size: 128 does not divide head_dim 64\n");
  const Outcome absent = RunCommand({"--model", "/nonexistent", "--prompt", "x"});
  EXPECT_EQ(absent.exit_code, kExitFailed);
  EXPECT_EQ(absent.err, "prefixd-worker: model config: cannot read /nonexistent/config.json\n");
  const Outcome longer =
      RunShipped({"--server", "none", "--prompt", "x", "--max-tokens", "8192", "--json"});
  EXPECT_EQ(longer.exit_code, kExitFailed);
  EXPECT_EQ(longer.Lines()[0]["error"],
            "generate: 1 prompt tokens and 8192 to answer are more than the model's 8192");
}

}  // namespace
}  // namespace prefixd::worker
