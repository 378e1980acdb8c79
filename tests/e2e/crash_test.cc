// Workers and the death of their daemon: real processes, kill -9, stopped workers. What a worker
// reads stays right, and the next daemon has it again.
#include <sstream>

#include "tests/e2e/fixture.h"

namespace prefixd::testing {
namespace {

using nlohmann::json;

class CrashTest : public EndToEndTest {
 protected:
  static constexpr int kRequests = 8;

  // A worker that answers the same prompt again and again.
  std::unique_ptr<Process> StartWorker(const std::string& prompt,
                                       const std::vector<std::string>& more = {}) {
    std::string requests;
    for (int i = 0; i < kRequests; ++i) {
      requests += json{{"id", std::to_string(i)}, {"prompt", prompt}}.dump() + "\n";
    }
    std::vector<std::string> argv = {Program("prefixd-worker"),
                                     "--server",
                                     address(),
                                     "--model",
                                     std::string(PREFIXD_TEST_DATA) + "/model",
                                     "--prompts-file",
                                     WriteFile("requests" + std::to_string(prompts_++), requests),
                                     "--max-tokens",
                                     "24",
                                     "--kv-bits",
                                     "8",
                                     "--threads",
                                     "2",
                                     "--json"};
    argv.insert(argv.end(), more.begin(), more.end());
    return std::make_unique<Process>(argv);
  }
  // Every answer has the text of the run without a cache.
  void ExpectRight(Process& worker, const json& cold) {
    EXPECT_EQ(worker.Wait(), 0) << worker.err();
    std::istringstream lines(worker.out());
    int answers = 0;
    for (std::string line; std::getline(lines, line); ++answers) {
      EXPECT_EQ(json::parse(line)["text"], cold["text"]) << line;
    }
    EXPECT_EQ(answers, kRequests);
  }
  json Cold(const std::string& prompt) { return Worker(prompt, "none", {"--kv-bits", "8"}); }
  void KillDaemon() {
    daemon_->Signal(SIGKILL);
    daemon_->Wait();
  }
};

TEST_F(CrashTest, AHitIsAttendedInPlaceAndEqualsTheColdRun) {
  StartDaemon();
  const std::string prompt = Corpus(0, 700);
  const json cold = Worker(prompt, "none", {"--kv-bits", "8"});
  const json first = Worker(prompt, address(), {"--kv-bits", "8"});
  EXPECT_EQ(first["in_place"], 0);
  EXPECT_EQ(first["arena"], true) << first["why_no_arena"];
  const json hit = Worker(prompt, address(), {"--kv-bits", "8"});
  EXPECT_EQ(hit["cached_tokens"], 699);
  EXPECT_GT(hit["in_place"], 0);
  const json copied = Worker(prompt, address(), {"--kv-bits", "8", "--no-arena"});
  EXPECT_EQ(copied["cached_tokens"], 699);
  EXPECT_EQ(copied["in_place"], 0);
  EXPECT_EQ(copied["arena"], false);
  EXPECT_NE(copied["why_no_arena"], "");
  for (const json& report : {first, hit, copied}) EXPECT_EQ(report["text"], cold["text"]);
}

// The daemon is killed while workers decode, and comes back.
TEST_F(CrashTest, WorkersFinishTheRightTextAfterKillNine) {
  StartDaemon();
  const std::string prompt = Corpus(1000, 600);
  const json cold = Cold(prompt);
  Worker(prompt, address(), {"--kv-bits", "8"});
  std::vector<std::unique_ptr<Process>> workers;
  for (int i = 0; i < 2; ++i) workers.push_back(StartWorker(prompt));
  for (const auto& worker : workers) {
    ASSERT_TRUE(worker->WaitForOutput("\"id\":\"1\"")) << worker->err();
  }
  KillDaemon();
  ASSERT_TRUE(workers[0]->WaitForOutput("\"id\":\"3\"")) << workers[0]->err();
  StartDaemon();
  for (const auto& worker : workers) ExpectRight(*worker, cold);
  const json again = Worker(prompt, address(), {"--kv-bits", "8"});
  EXPECT_EQ(again["cached_tokens"], 599) << "found again in the arena";
  EXPECT_GT(again["ram_bytes"], 0);
  EXPECT_GT(again["in_place"], 0);
}

// A worker is stopped in the middle of its work; meanwhile the daemon is killed, comes back with
// the same arena and is filled by others beyond its budget. Continued, the worker reads what it
// leased.
TEST_F(CrashTest, AStoppedWorkerReadsRightBytesAfterTheDaemonWasKilledAndFilledAgain) {
  ram_ = "64MiB";
  StartDaemon();
  const std::string prompt = Corpus(3000, 600);
  const json cold = Cold(prompt);
  Worker(prompt, address(), {"--kv-bits", "8"});
  const auto worker = StartWorker(prompt);
  ASSERT_TRUE(worker->WaitForOutput("\"id\":\"2\"")) << worker->err();
  worker->Signal(SIGSTOP);
  KillDaemon();
  StartDaemon();
  for (size_t i = 0; i < 4; ++i) {
    Worker(Corpus(10'000 + 1000 * i, 900), address());  // raw: big pages
  }
  worker->Signal(SIGCONT);
  ExpectRight(*worker, cold);
}

}  // namespace
}  // namespace prefixd::testing
