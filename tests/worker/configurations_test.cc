// The eight configurations that rotating and asymmetric caches were tried in: each answers.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "nlohmann/json.hpp"

#include "client/worker/worker.h"
#include "tests/worker/shipped_model.h"

namespace prefixd::worker {
namespace {

struct Configuration {
  const char* name;
  std::vector<const char*> flags;
};

const std::vector<Configuration>& Configurations() {
  static const std::vector<Configuration> all = {
      {"raw", {}},
      {"four", {"--kv-bits", "4"}},
      {"eight", {"--kv-bits", "8"}},
      {"eight_four", {"--kv-bits", "8,4"}},
      {"four_two", {"--kv-bits", "4,2"}},
      {"window", {"--max-kv-size", "128"}},
      {"window_four", {"--max-kv-size", "128", "--kv-bits", "4"}},
      {"window_eight_four", {"--max-kv-size", "128", "--kv-bits", "8,4"}}};
  return all;
}

// What the shipped model answers to 200 bytes, from the `skipped`-th byte of a text on, in at most
// `most` tokens.
std::vector<uint32_t> AnswerOf(std::vector<const char*> flags, size_t skipped = 0,
                               const char* most = "100") {
  std::string prompt;
  while (prompt.size() < skipped + 200) prompt += "and it was so. And God saw that it was good; ";
  prompt = prompt.substr(skipped, 200);
  std::vector<const char*> arguments = {
      "prefixd-worker", "--model",  kShippedModel.c_str(), "--threads",    "2",  "--server",
      "none",           "--prompt", prompt.c_str(),        "--max-tokens", most, "--json"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  Options options;
  std::ostringstream out, err;
  const std::optional<int> refused =
      ParseCommandLine(static_cast<int>(arguments.size()), arguments.data(), &options, out, err);
  EXPECT_FALSE(refused.has_value()) << err.str();
  EXPECT_EQ(RunWorker(options, out, err), kExitOk) << err.str();
  std::istringstream lines(out.str());
  std::string line;
  std::getline(lines, line);
  const nlohmann::json report = nlohmann::json::parse(line, nullptr, false);
  if (!report.contains("tokens")) return {};
  return report["tokens"].get<std::vector<uint32_t>>();
}

class ConfigurationsTest : public ::testing::TestWithParam<size_t> {};

// S2-11, S2-01, S2-08: 100 steps, in a window of 128 past its end.
TEST_P(ConfigurationsTest, AHundredTokensAreAnsweredAndTheSameOnesAgain) {
  const Configuration& configuration = Configurations()[GetParam()];
  const std::vector<uint32_t> answer = AnswerOf(configuration.flags);
  EXPECT_EQ(answer.size(), 100u);
  EXPECT_EQ(AnswerOf(configuration.flags), answer);
}

INSTANTIATE_TEST_SUITE_P(All, ConfigurationsTest, ::testing::Range<size_t>(0, 8),
                         [](const auto& info) { return Configurations()[info.param].name; });

// S2-20. Where two tokens are nearly as likely, rounding decides, which differs from one kernel of
// attention or of BLAS to the next: some prompts diverge, most do not.
TEST(ShortAnswersTest, OfFineFormatsBeginAsInFullPrecision) {
  constexpr size_t kPrompts = 32;
  constexpr const char* kTokens = "16";
  for (const char* bits : {"8", "8,4"}) {
    size_t same = 0;
    for (size_t skipped = 0; skipped < kPrompts; ++skipped) {
      const std::vector<uint32_t> raw = AnswerOf({}, skipped, kTokens);
      same += raw == AnswerOf({"--kv-bits", bits}, skipped, kTokens);
    }
    EXPECT_GE(same, kPrompts * 5 / 8) << bits;
  }
}

}  // namespace
}  // namespace prefixd::worker
