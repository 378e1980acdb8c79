// Real workers of a real model share one cache through the real daemon, and have it back after a
// restart.
#include "tests/e2e/fixture.h"

namespace prefixd::testing {
namespace {

using nlohmann::json;

class WorkersTest : public EndToEndTest,
                    public ::testing::WithParamInterface<std::vector<std::string>> {
 protected:
  // The same request without and with the cache: same text; returns the report with it.
  json Compare(const std::string& prompt, const std::string& kind, size_t cached) {
    const json cold = Worker(prompt, "none", GetParam());
    const json warm = Worker(prompt, address(), GetParam());
    EXPECT_EQ(warm["text"], cold["text"]) << kind;
    EXPECT_EQ(warm["tokens"], cold["tokens"]) << kind;
    EXPECT_EQ(warm["kind"], kind);
    EXPECT_EQ(warm["cached_tokens"], cached) << kind;
    EXPECT_EQ(warm["used_tokens"], cached) << kind;
    EXPECT_EQ(warm["cache_error"], "");
    return warm;
  }
};

// A1 every-row: each match shape reuses every shareable token but the one needed for logits, and
// the text is the same with and without the cache, in raw f32, 8-bit, and 8-bit K with 4-bit V.
TEST_P(WorkersTest, EveryMatchShapeReusesAllItMayAndKeepsTheText) {
  StartDaemon();
  const std::string prompt = Corpus(0, 700);
  Compare(prompt, "NONE", 0);
  Compare(prompt, "EXACT", 699);
  Compare(prompt.substr(0, 500), "SUPERSEQUENCE", 499);
  std::string diverging = prompt.substr(0, 377) + Corpus(5000, 200);
  while (diverging[377] == prompt[377]) diverging.erase(377, 1);
  Compare(diverging, "LCP", 377);
  const json longer = Compare(prompt + Corpus(9000, 100), "PREFIX", 700);
  EXPECT_GT(longer["ram_bytes"], 0);
  EXPECT_EQ(longer["ssd_bytes"], 0);
  StopDaemon();
  StartDaemon();
  const json found = Compare(prompt, "EXACT", 699);
  EXPECT_GT(found["ram_bytes"], 0) << "the arena outlives its daemon";
  EXPECT_EQ(found["ssd_bytes"], 0);
  StopDaemon();
  LoseArena();
  StartDaemon();
  const json restored = Compare(prompt, "EXACT", 699);
  EXPECT_EQ(restored["ram_bytes"], 0);
  EXPECT_GT(restored["ssd_bytes"], 0);
  StopDaemon();
}

INSTANTIATE_TEST_SUITE_P(
    Formats, WorkersTest,
    ::testing::Values(std::vector<std::string>{}, std::vector<std::string>{"--kv-bits", "8"},
                      std::vector<std::string>{"--kv-bits", "4", "--quantized-kv-start", "300"},
                      std::vector<std::string>{"--kv-bits", "8,4", "--kv-group-size", "64,32",
                                               "--kv-dtype", "bf16"}));

// A3 other-flags: a worker with other quantization flags neither reinterprets nor loses what is
// there.
TEST_F(EndToEndTest, OtherQuantizationFlagsAreAnotherSpace) {
  StartDaemon();
  const std::string prompt = Corpus(100, 300);
  Worker(prompt, address(), {"--kv-bits", "8"});
  StopDaemon();
  StartDaemon();
  EXPECT_EQ(Worker(prompt, address(), {"--kv-bits", "4"})["cached_tokens"], 0);
  EXPECT_EQ(Worker(prompt, address(), {"--kv-bits", "8"})["cached_tokens"], 299);
  EXPECT_EQ(Worker(prompt, address(), {"--kv-bits", "4"})["cached_tokens"], 299);
  EXPECT_EQ(Ctl({"spaces"})["spaces"].size(), 2u);
}

TEST_F(EndToEndTest, TwoWorkersAtOnceOnOnePromptBothSucceed) {
  StartDaemon();
  const std::string prompt = Corpus(200, 400);
  const json cold = Worker(prompt, "none", {"--kv-bits", "8"});
  Process first(WorkerCommand(prompt, address(), {"--kv-bits", "8"}));
  Process second(WorkerCommand(prompt, address(), {"--kv-bits", "8"}));
  EXPECT_EQ(first.Wait(), 0) << first.err();
  EXPECT_EQ(second.Wait(), 0) << second.err();
  for (const Process* worker : {&first, &second}) {
    const json report = json::parse(worker->out());
    EXPECT_EQ(report["text"], cold["text"]);
    EXPECT_EQ(report["cache_error"], "");
  }
  EXPECT_EQ(Worker(prompt, address(), {"--kv-bits", "8"})["cached_tokens"], 399);
}

// A5 no-daemon: a worker goes on without one, and through the death of one.
TEST_F(EndToEndTest, AWorkerGoesOnWithoutADaemonAndThroughItsDeath) {
  const std::string prompt = Corpus(300, 200);
  const json cold = Worker(prompt, "none");
  const json alone = Worker(prompt, address());
  EXPECT_EQ(alone["text"], cold["text"]);
  EXPECT_NE(alone["cache_error"], "");

  StartDaemon();
  std::string requests;
  for (int i = 0; i < 6; ++i)
    requests += json{{"id", std::to_string(i)}, {"prompt", prompt}}.dump() + "\n";
  std::vector<std::string> argv = {Program("prefixd-worker"),
                                   "--server",
                                   address(),
                                   "--model",
                                   std::string(PREFIXD_TEST_DATA) + "/model",
                                   "--prompts-file",
                                   WriteFile("requests", requests),
                                   "--max-tokens",
                                   "24",
                                   "--threads",
                                   "2",
                                   "--json"};
  Process worker(argv);
  ASSERT_TRUE(worker.WaitForOutput("\"id\":\"1\"")) << worker.err();
  daemon_->Signal(SIGKILL);
  EXPECT_EQ(worker.Wait(), 0) << worker.err();
  std::istringstream lines(worker.out());
  int answers = 0;
  for (std::string line; std::getline(lines, line); ++answers)
    EXPECT_EQ(json::parse(line)["text"], cold["text"]) << line;
  EXPECT_EQ(answers, 6);
}

}  // namespace
}  // namespace prefixd::testing
