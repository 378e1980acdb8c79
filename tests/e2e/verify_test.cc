// --verify-hits on the real programs: right pages are found right, a planted wrong one is found,
// and the answer is the same with and without looking.
#include "client/worker/cache_space.h"
#include "client/worker/kv_format.h"
#include "client/worker/model.h"
#include "client/worker/weights.h"
#include "tests/e2e/fixture.h"

namespace prefixd::testing {
namespace {

using nlohmann::json;

class VerifyTest : public EndToEndTest {
 protected:
  // Stores the prompt's pages as a worker would; with `wrong`, those of layer 3 are of other places
  // from token 64 to 127.
  void Store(const std::string& prompt, bool wrong) {
    const std::string dir = std::string(PREFIXD_TEST_DATA) + "/model";
    const auto config = worker::LoadModelConfig(dir);
    ASSERT_TRUE(config.ok());
    const KvFormat format = worker::ChooseKvFormat({.bits = "8"})->format;
    worker::Options options;
    options.server = address();
    auto cache = worker::OpenCacheSpace(
        options,
        worker::MakeSpaceSpec(*config, *worker::IdentifyCheckpoint(dir, *config), {format}));
    ASSERT_TRUE(cache.ok()) << cache.status();
    worker::Model model(*config, *worker::LoadWeights(dir, *config),
                        {.formats = {format}, .threads = 2});
    const std::vector<uint32_t> tokens(prompt.begin(), prompt.end());
    const auto count = static_cast<uint32_t>(tokens.size());
    Sequence sequence = cache->space.Begin(tokens, {.max_cached_tokens = 0});
    for (uint32_t at = 0; at < count;) {
      const uint32_t end = std::min(model.StepEnd(at), count);
      ASSERT_TRUE(model.Prefill(sequence, {.tokens = tokens, .begin = at, .end = end}).ok());
      at = end;
    }
    if (wrong) Misplace(*config, format, count, &sequence);
    const Result<CommitInfo> stored = sequence.Commit({.sequence_end = true});
    ASSERT_TRUE(stored.ok()) << stored.status.message;
  }

  static void Misplace(const worker::ModelConfig& config, const KvFormat& format, uint32_t count,
                       Sequence* sequence) {
    const RowBytes row = BytesOfRow(format.key, config.head_dim);
    const size_t rows = size_t{config.kv_heads} * count;
    std::vector<std::byte> codes[2], scales[2], biases[2];
    MutablePackedView views[2];
    PackedView wrong[2];
    for (size_t i = 0; i < 2; ++i) {
      codes[i].resize(rows * row.codes);
      scales[i].resize(rows * row.scales);
      biases[i].resize(rows * row.biases);
      views[i] = {
          codes[i].data(), scales[i].data(),           biases[i].data(), count * size_t{row.codes},
          row.codes,       count * size_t{row.scales}, row.scales};
      wrong[i] = {
          codes[i].data(), scales[i].data(),           biases[i].data(), count * size_t{row.codes},
          row.codes,       count * size_t{row.scales}, row.scales};
    }
    ASSERT_TRUE(sequence->Gather(3, 0, count, views[0], views[1]).ok());
    for (size_t i = 0; i < 2; ++i) {
      std::memcpy(codes[i].data() + 64 * row.codes, codes[i].data() + 128 * row.codes,
                  64 * size_t{row.codes});
    }
    ASSERT_TRUE(sequence->WritePacked(3, 0, count, wrong[0], wrong[1]).ok());
  }
};

TEST_F(VerifyTest, RightHitsAreIdenticalToTheByte) {
  StartDaemon();
  const std::string prompt = Corpus(0, 300);
  Worker(prompt, address(), {"--kv-bits", "8"});
  const json report = Worker(prompt, address(), {"--kv-bits", "8", "--verify-hits", "1"});
  ASSERT_TRUE(report["verified"].is_object()) << report;
  EXPECT_EQ(report["verified"]["tokens"], 299);
  EXPECT_EQ(report["verified"]["identical_tokens"], 299);
  EXPECT_EQ(report["verified"]["wrong_blocks"], 0);
  EXPECT_TRUE(Worker(prompt, address(), {"--kv-bits", "8"})["verified"].is_null());
}

// What was decoded is not what prefill computes, to the bit; it stays within the bound.
TEST_F(VerifyTest, TokensThatWereDecodedAreWithinTheBound) {
  StartDaemon();
  const std::string prompt = Corpus(500, 200);
  const json first = Worker(prompt, address(), {"--kv-bits", "8"});
  const json next = Worker(prompt + first["text"].get<std::string>() + Corpus(900, 50), address(),
                           {"--kv-bits", "8", "--verify-hits", "1"});
  EXPECT_GE(next["verified"]["tokens"], 215) << next;
  EXPECT_EQ(next["verified"]["wrong_blocks"], 0) << next;
}

TEST_F(VerifyTest, APlantedWrongPageIsFoundAndTheAnswerIsNotTouched) {
  StartDaemon();
  const std::string prompt = Corpus(1000, 300);
  Store(prompt, /*wrong=*/true);
  const json plain = Worker(prompt, address(), {"--kv-bits", "8"});
  EXPECT_EQ(plain["used_tokens"], 299);
  Process worker(WorkerCommand(prompt, address(), {"--kv-bits", "8", "--verify-hits", "1"}));
  EXPECT_EQ(worker.Wait(), 0) << worker.err();
  const json report = json::parse(worker.out());
  EXPECT_EQ(report["tokens"], plain["tokens"]);
  EXPECT_EQ(report["verified"]["wrong_blocks"], 1) << report;
  EXPECT_EQ(report["verified"]["identical_tokens"], 299 - 64) << report;
  EXPECT_NE(worker.err().find("verified 1 of 1 hits, 1 with wrong pages"), std::string::npos)
      << worker.err();
}

TEST_F(VerifyTest, TheSameStoredRightIsFoundRight) {
  StartDaemon();
  const std::string prompt = Corpus(1000, 300);
  Store(prompt, /*wrong=*/false);
  const json report = Worker(prompt, address(), {"--kv-bits", "8", "--verify-hits", "1"});
  EXPECT_EQ(report["verified"]["identical_tokens"], 299) << report;
}

}  // namespace
}  // namespace prefixd::testing
