// prefixd-worker --device cuda through the real daemon, beside --device cpu:
// the same tokens, the same hits, and each finds what the other stored. What
// needs a GPU is skipped where none is.
#include <atomic>
#include <thread>

#include "tests/e2e/fixture.h"

namespace prefixd::testing {
namespace {

using nlohmann::json;

class GpuTest : public EndToEndTest {
 protected:
  std::vector<std::string> Command(const std::string& requests,
                                   const std::vector<std::string>& more) const {
    std::vector<std::string> argv = {Program("prefixd-worker"),
                                     "--model",
                                     std::string(PREFIXD_TEST_DATA) + "/" + model_,
                                     "--prompts-file",
                                     requests,
                                     "--max-tokens",
                                     std::to_string(max_tokens_),
                                     "--threads",
                                     "2",
                                     "--json"};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  // One worker that answers every prompt in order; its reports.
  std::vector<json> Answer(const std::vector<std::string>& prompts, const std::string& device,
                           const std::string& server, const std::vector<std::string>& more = {}) {
    std::string requests;
    for (const std::string& prompt : prompts) requests += json{{"prompt", prompt}}.dump() + "\n";
    std::vector<std::string> options = {"--device", device, "--server", server};
    options.insert(options.end(), more.begin(), more.end());
    Process worker(Command(WriteFile("requests" + std::to_string(prompts_++), requests), options));
    EXPECT_EQ(worker.Wait(), 0) << worker.err();
    std::vector<json> reports;
    std::istringstream lines(worker.out());
    for (std::string line; std::getline(lines, line);) reports.push_back(json::parse(line));
    EXPECT_EQ(reports.size(), prompts.size());
    return reports;
  }
  // Why no GPU can be used; empty if one can.
  std::string WhyNoGpu() {
    Process worker(Command(WriteFile("probe", json{{"prompt", "a"}}.dump()),
                           {"--device", "cuda", "--server", "none"}));
    return worker.Wait() == 0 ? "" : worker.err();
  }
  void RestartWithNothing() {
    StopDaemon();
    LoseArena();
    std::filesystem::remove_all(dir_ + "/data");
    StartDaemon();
  }
};

// Returns prompts that meet the cache in every way: nothing, the same text, a shorter one, one that
// goes another way, a longer one; and prompts of lengths around the ends of blocks.
std::vector<std::string> Prompts(const std::string& text, const std::string& other) {
  std::string diverging = text.substr(0, 177) + other.substr(0, 90);
  if (diverging[177] == text[177]) diverging[177] = '~';
  return {text,
          text,
          text.substr(0, 200),
          diverging,
          text + other,
          other.substr(0, 1),
          other.substr(0, 64),
          other.substr(0, 65),
          other.substr(0, 128)};
}

void ExpectSameAnswers(const std::vector<json>& got, const std::vector<json>& want,
                       const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i]["tokens"], want[i]["tokens"]) << what << ", prompt " << i;
  }
}

void ExpectSameHits(const std::vector<json>& got, const std::vector<json>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    for (const char* field : {"kind", "cached_tokens", "used_tokens", "matched_tokens",
                              "stored_tokens", "cache_error"}) {
      EXPECT_EQ(got[i][field], want[i][field]) << field << " of prompt " << i;
    }
  }
}

class GpuFamilyTest : public GpuTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(GpuFamilyTest, TheGpuAnswersAndHitsAsTheCpu) {
  const std::string why = WhyNoGpu();
  if (!why.empty()) GTEST_SKIP() << why;
  model_ = GetParam();
  const std::vector<std::string> prompts = Prompts(Corpus(0, 300), Corpus(5000, 130));
  const std::vector<json> want = Answer(prompts, "cpu", "none");
  ExpectSameAnswers(Answer(prompts, "cuda", "none"), want, "cold");
  StartDaemon();
  const std::vector<json> on_cpu = Answer(prompts, "cpu", address());
  ExpectSameAnswers(on_cpu, want, "hits on the CPU");
  // What the CPU stored is a hit for the GPU.
  const std::vector<json> found = Answer({prompts[0]}, "cuda", address());
  ExpectSameAnswers(found, {want[0]}, "the CPU's pages on the GPU");
  EXPECT_EQ(found[0]["kind"], "EXACT");
  EXPECT_EQ(found[0]["used_tokens"], on_cpu[1]["used_tokens"]);
  EXPECT_GT(found[0]["used_tokens"], 0);
  EXPECT_EQ(found[0]["device"], "cuda");
  EXPECT_NE(found[0]["gpu"], "");
  RestartWithNothing();
  const std::vector<json> on_gpu = Answer(prompts, "cuda", address());
  ExpectSameAnswers(on_gpu, want, "hits on the GPU");
  ExpectSameHits(on_gpu, on_cpu);
  const std::vector<json> back = Answer({prompts[0]}, "cpu", address());
  ExpectSameAnswers(back, {want[0]}, "the GPU's pages on the CPU");
  EXPECT_EQ(back[0]["used_tokens"], on_cpu[1]["used_tokens"]);
  StopDaemon();
}

INSTANTIATE_TEST_SUITE_P(Families, GpuFamilyTest,
                         ::testing::Values("tiny/qwen2", "tiny/qwen3", "tiny/llama3", "tiny/gemma3",
                                           "tiny/qwen3_next", "model"),
                         [](const auto& it) {
                           std::string name = it.param;
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

// Quantized pages: what the GPU read in the cache and what it computes again
// are the same bytes.
TEST_F(GpuTest, HitsOnTheGpuAreRightToTheByte) {
  const std::string why = WhyNoGpu();
  if (!why.empty()) GTEST_SKIP() << why;
  StartDaemon();
  const std::vector<std::string> prompts = Prompts(Corpus(0, 700), Corpus(5000, 130));
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--kv-bits", "8"},
        std::vector<std::string>{"--kv-bits", "8,4", "--attention", "precise"},
        std::vector<std::string>{"--kv-bits", "4,8", "--attention", "fast"},
        std::vector<std::string>{"--kv-bits", "8", "--kv-rotation", "hadamard"},
        std::vector<std::string>{"--max-kv-size", "128", "--kv-bits", "8"}}) {
    std::vector<std::string> verified = flags;
    verified.insert(verified.end(), {"--verify-hits", "1"});
    const std::vector<json> cold = Answer(prompts, "cuda", "none", flags);
    const std::vector<json> warm = Answer(prompts, "cuda", address(), verified);
    ExpectSameAnswers(warm, cold, flags[1]);
    ASSERT_TRUE(warm[1]["verified"].is_object()) << warm[1];
    EXPECT_EQ(warm[1]["verified"]["wrong_blocks"], 0) << flags[1];
    EXPECT_EQ(warm[1]["verified"]["identical_tokens"], warm[1]["verified"]["tokens"]) << flags[1];
  }
  StopDaemon();
}

// The memory is pinned beside the work, so an early hit may still be copied by the CPU.
TEST_F(GpuTest, PrefixdsMemoryIsPinnedFromTheFirstHitOnAndTheBytesStayRight) {
  const std::string why = WhyNoGpu();
  if (!why.empty()) GTEST_SKIP() << why;
  const std::string prompt = Corpus(0, 700);
  const std::vector<std::string> flags = {"--kv-bits", "8", "--verify-hits", "1"};
  const json cold = Answer({prompt}, "cuda", "none", {"--kv-bits", "8"}).front();
  StartDaemon();
  Answer({prompt}, "cpu", address(), {"--kv-bits", "8"});
  bool is_pinned = false;
  for (size_t hits = 8; !is_pinned && hits <= 128; hits *= 4) {
    for (const json& hit :
         Answer(std::vector<std::string>(hits, prompt), "cuda", address(), flags)) {
      EXPECT_EQ(hit["tokens"], cold["tokens"]);
      EXPECT_EQ(hit["used_tokens"], 699);
      EXPECT_EQ(hit["why_not_pinned"], "");
      ASSERT_TRUE(hit["verified"].is_object()) << hit;
      EXPECT_EQ(hit["verified"]["wrong_blocks"], 0);
      is_pinned |= hit["pinned_bytes"] > 0;
    }
  }
  EXPECT_TRUE(is_pinned);
  StopDaemon();
}

TEST_F(GpuTest, PrefixdKnowsWhatAWorkerHasPinnedAndForgetsItWhenTheWorkerEnds) {
  const std::string why = WhyNoGpu();
  if (!why.empty()) GTEST_SKIP() << why;
  const std::string prompt = Corpus(0, 700);
  StartDaemon();
  Answer({prompt}, "cpu", address(), {"--kv-bits", "8"});
  const auto pinned = [&] {
    return Ctl({"stats"})["counters"]["arena.device_pinned_bytes"].get<uint64_t>();
  };
  EXPECT_EQ(pinned(), 0u);
  std::atomic<bool> done{false};
  uint64_t most_pinned = 0;
  std::thread answers([&] {
    Answer(std::vector<std::string>(200, prompt), "cuda", address(), {"--kv-bits", "8"});
    done = true;
  });
  while (!done && most_pinned == 0) most_pinned = pinned();
  answers.join();
  EXPECT_GT(most_pinned, 0u);
  EXPECT_EQ(pinned(), 0u) << "the worker has ended";
  StopDaemon();
}

// A chain that is raw first and quantized from some block on.
TEST_F(GpuTest, HitsOfMixedFormatsChangeNoAnswer) {
  const std::string why = WhyNoGpu();
  if (!why.empty()) GTEST_SKIP() << why;
  StartDaemon();
  const std::vector<std::string> prompts = Prompts(Corpus(0, 700), Corpus(5000, 130));
  const std::vector<std::string> flags = {"--kv-bits", "4", "--quantized-kv-start", "300"};
  const std::vector<json> warm = Answer(prompts, "cuda", address(), flags);
  ExpectSameAnswers(warm, Answer(prompts, "cuda", "none", flags), "mixed formats");
  EXPECT_EQ(warm[1]["used_tokens"], 699);
  EXPECT_GT(warm[1]["raw_kv_tokens"], 0);
  EXPECT_GT(warm[1]["quantized_kv_tokens"], 0);
  StopDaemon();
}

TEST_F(GpuTest, WithoutWhatItNeedsItEndsAtOnceAndSaysWhat) {
  ASSERT_EQ(setenv("PREFIXD_WORKER_CUDA", "/nonexistent/gpu.so", 1), 0);
  Process worker(Command(WriteFile("probe", "{}"), {"--device", "cuda", "--server", "none"}));
  unsetenv("PREFIXD_WORKER_CUDA");
  EXPECT_EQ(worker.Wait(), 2);
  EXPECT_EQ(worker.out(), "");
  EXPECT_EQ(worker.err().rfind("prefixd-worker: --device cuda: libprefixd_worker_cuda.so was not "
                               "found at $PREFIXD_WORKER_CUDA (/nonexistent/gpu.so",
                               0),
            0u)
      << worker.err();
}

}  // namespace
}  // namespace prefixd::testing
