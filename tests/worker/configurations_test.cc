// The eight configurations that rotating and asymmetric caches were tried in: each answers.
#include <gtest/gtest.h>

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

// What the shipped model answers to 200 bytes.
std::vector<uint32_t> AnswerOf(std::vector<const char*> flags) {
  std::string prompt;
  while (prompt.size() < 200) prompt += "and it was so. And God saw that it was good; ";
  prompt.resize(200);
  std::vector<const char*> arguments = {
      "prefix-worker", "--model",  kShippedModel.c_str(), "--threads",    "2",   "--server",
      "none",          "--prompt", prompt.c_str(),        "--max-tokens", "100", "--json"};
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

// S2-20
TEST(ShortAnswersTest, OfFineFormatsBeginAsInFullPrecision) {
  const std::vector<uint32_t> raw = AnswerOf({});
  for (const char* bits : {"8", "8,4"}) {
    const std::vector<uint32_t> answer = AnswerOf({"--kv-bits", bits});
    ASSERT_GE(answer.size(), 16u) << bits;
    EXPECT_TRUE(std::equal(raw.begin(), raw.begin() + 16, answer.begin())) << bits;
  }
}

}  // namespace
}  // namespace prefixd::worker
