#include "client/worker/prompts.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace prefixd::worker {
namespace {

ModelConfig Vocabulary(uint32_t size) {
  ModelConfig config;
  config.name = "tiny";
  config.vocab_size = size;
  return config;
}

std::string Refusal(const std::string& line, uint32_t vocabulary = 256) {
  return std::string(ParsePromptLine(line, Vocabulary(vocabulary)).status().message());
}

// Writes `text` to a file that lives as long as the test.
class PromptFile {
 public:
  explicit PromptFile(const std::string& text)
      : path_(testing::TempDir() + "/prompts_test_" +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~PromptFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

TEST(PromptsTest, TextBecomesItsBytes) {
  const absl::StatusOr<Prompt> prompt =
      ParsePromptLine(R"({"id": "a", "prompt": "H\u00e9"})", Vocabulary(256));
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->id, "a");
  EXPECT_EQ(prompt->tokens, (std::vector<uint32_t>{'H', 0xc3, 0xa9}));
}

TEST(PromptsTest, TokensAreTakenAsTheyAre) {
  const absl::StatusOr<Prompt> prompt =
      ParsePromptLine(R"({"id": 7, "tokens": [0, 151935]})", Vocabulary(151936));
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->id, "7");
  EXPECT_EQ(prompt->tokens, (std::vector<uint32_t>{0, 151935}));
}

TEST(PromptsTest, BadLinesAreRefusedWithTheReason) {
  EXPECT_EQ(Refusal("{"), "prompt: not a JSON object");
  EXPECT_EQ(Refusal("[1]"), "prompt: not a JSON object");
  EXPECT_EQ(Refusal(R"({"id": 1})"), "prompt: give either prompt or tokens");
  EXPECT_EQ(Refusal(R"({"prompt": "a", "tokens": [1]})"), "prompt: give either prompt or tokens");
  EXPECT_EQ(Refusal(R"({"text": "a"})"),
            "prompt: unknown field \"text\", choose id, prompt and tokens");
  EXPECT_EQ(Refusal(R"({"prompt": ""})"), "prompt: no text");
  EXPECT_EQ(Refusal(R"({"prompt": 5})"), "prompt: prompt is not a string");
  EXPECT_EQ(Refusal(R"({"tokens": []})"), "prompt: no tokens");
  EXPECT_EQ(Refusal(R"({"tokens": "1,2"})"), "prompt: tokens is not a list");
  EXPECT_EQ(Refusal(R"({"tokens": [256]})"), "prompt: token 256 is not in the vocabulary of 256");
  EXPECT_EQ(Refusal(R"({"tokens": [4294967297]})"),
            "prompt: token 4294967297 is not in the vocabulary of 256");
  EXPECT_EQ(Refusal(R"({"tokens": [-1]})"), "prompt: token -1 is not in the vocabulary of 256");
  EXPECT_EQ(Refusal(R"({"tokens": [1.5]})"), "prompt: token 1.5 is not in the vocabulary of 256");
  EXPECT_EQ(Refusal(R"({"prompt": "a"})", 32000),
            "prompt: text needs a model whose tokens are bytes (vocab_size 256), tiny has 32000 "
            "tokens: give token ids");
}

TEST(PromptsTest, ABadLineIsNamedAndTheNextOnesFollow) {
  const PromptFile file("{\"id\": \"a\", \"prompt\": \"x\"}\n\nnonsense\n{\"prompt\": \"y\"}");
  Options options;
  options.prompts_file = file.path();
  absl::StatusOr<PromptSource> source = PromptSource::Open(options, Vocabulary(256));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source->Next())->id, "a");
  EXPECT_EQ(source->Next().status().message(), "line 3: prompt: not a JSON object");
  EXPECT_EQ((*source->Next())->tokens, std::vector<uint32_t>{'y'});
  EXPECT_FALSE(source->Next()->has_value());
  EXPECT_FALSE(source->Next()->has_value());
}

TEST(PromptsTest, APromptFileIsReadByteForByte) {
  const PromptFile file("a\r\n\n");
  Options options;
  options.prompt_file = file.path();
  absl::StatusOr<PromptSource> source = PromptSource::Open(options, Vocabulary(256));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source->Next())->tokens, (std::vector<uint32_t>{'a', '\r', '\n', '\n'}));
  EXPECT_FALSE(source->Next()->has_value());
}

TEST(PromptsTest, FilesThatAreNotThereAreNamed) {
  Options options;
  options.prompts_file = "/nonexistent/prompts";
  EXPECT_EQ(PromptSource::Open(options, Vocabulary(256)).status().message(),
            "prompt: cannot read /nonexistent/prompts");
  options.prompts_file = "";
  options.prompt_file = "/nonexistent/prompt";
  EXPECT_EQ(PromptSource::Open(options, Vocabulary(256)).status().message(),
            "prompt: cannot read /nonexistent/prompt");
}

}  // namespace
}  // namespace prefixd::worker
