// Traces as others write them, and what is none.
#include "sizing/read_trace.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

namespace prefixd::sizing {
namespace {

class ReadTraceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "prefixd-sizing-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  absl::StatusOr<ReadTrace> Read(const std::string& text, const TraceOptions& options = {}) {
    const std::string path = folder_ + "/trace";
    std::ofstream(path, std::ios::binary) << text;
    return ReadTraceFile(path, options);
  }
  static std::string Packed(const std::string& text) {
    std::string packed(ZSTD_compressBound(text.size()), '\0');
    packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
    return packed;
  }
  std::string folder_;
};

TEST_F(ReadTraceTest, HashesAreBlocksOf512TokensAndTheLastMayBeShort) {
  const auto read = Read(
      "{\"timestamp\": 500, \"input_length\": 600, \"hash_ids\": [46, 47]}\n"
      "{\"timestamp\": 800, \"input_length\": 1024, \"hash_ids\": [46, 99]}\n");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->kind, LineKind::kHashes);
  EXPECT_EQ(read->trace.unique, 3u);
  EXPECT_EQ(read->trace.references, (std::vector<TraceBlock>{0, 1, 0, 2}));
  EXPECT_EQ(read->trace.block_sizes, (std::vector<uint32_t>{512, 88, 512}));
  EXPECT_EQ(read->trace.requests[0].tokens, 600u);
  EXPECT_EQ(read->trace.requests[1].at_ms, 300);
}

TEST_F(ReadTraceTest, AHashIdBelowTwoOthersIsTwoBlocks) {
  const std::string text =
      "{\"timestamp\": 0, \"hash_ids\": [1, 7]}\n{\"timestamp\": 1, \"hash_ids\": [2, 7]}\n";
  const auto read = Read(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->trace.unique, 4u);
  const auto strict = Read(text, {.one_parent = true});
  ASSERT_TRUE(strict.ok()) << strict.status();
  EXPECT_EQ(strict->first_bad_line, 2u);
}

TEST_F(ReadTraceTest, TokenIdsAreCutIntoBlocksThatPrefixesShare) {
  const auto read = Read(
      "{\"prompt_token_ids\": [1, 2, 3, 4, 5]}\n"
      "{\"body\": {\"model\": \"m\", \"prompt\": [1, 2, 3, 4, 6]}}\n"
      "{\"id\": 3, \"usage\": {\"tokens\": [9, 9]}, \"input_ids\": [9, 2, 3, 4]}\n",
      {.block_tokens = 4});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->kind, LineKind::kTokens);
  EXPECT_EQ(read->bad_lines, 0u) << read->first_why;
  EXPECT_EQ(read->trace.references, (std::vector<TraceBlock>{0, 1, 0, 2, 3}));
  EXPECT_EQ(read->trace.requests[0].tokens, 5u);
}

TEST_F(ReadTraceTest, TextAndMessagesAreTokensOfSoManyBytes) {
  const auto text =
      Read("{\"prompt\": \"abcdefghij\"}\n{\"input\": \"abcdefghik\"}\n", {.block_tokens = 2});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->kind, LineKind::kText);
  EXPECT_EQ(text->trace.references, (std::vector<TraceBlock>{0, 1, 0, 2}));
  EXPECT_EQ(text->trace.requests[0].tokens, 3u);
  const auto chat = Read(
      "{\"messages\": [{\"role\": \"system\", \"content\": \"be brief\"}]}\n"
      "{\"messages\": [{\"role\": \"system\", \"content\": \"be brief\"}, {\"role\": \"user\", "
      "\"content\": [{\"type\": \"text\", \"text\": \"hello\"}]}]}\n",
      {.block_tokens = 4});
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->trace.requests.size(), 2u);
  EXPECT_EQ(chat->trace.references[0], chat->trace.references[1]) << "the system prompt is shared";
}

TEST_F(ReadTraceTest, VllmsLogIsReadAndItsOtherLinesAreNoDamage) {
  const auto read = Read(
      "INFO 07-01 12:00:00 [api_server.py:1] Starting vLLM\n"
      "INFO Received request cmpl-1: prompt: 'say prompt_token_ids: [7]', params: "
      "SamplingParams(n=1), prompt_token_ids: [1, 2, 3], lora_request: None.\n"
      "INFO Avg prompt throughput: 3.0 tokens/s\n"
      "INFO Received request cmpl-2: params: SamplingParams(n=1), lora_request: None.\n"
      "INFO Received request cmpl-3: prompt: 'x', prompt_token_ids: [1, 2, 3, 4\n",
      {.block_tokens = 1});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->kind, LineKind::kTokens);
  EXPECT_EQ(read->trace.requests.size(), 1u);
  EXPECT_EQ(read->trace.requests[0].tokens, 3u);
  EXPECT_EQ(read->bad_lines, 2u);
  EXPECT_EQ(read->first_bad_line, 4u);
}

TEST_F(ReadTraceTest, PrefixdsOwnLogIsRefusedSayingWhy) {
  const auto read = Read(
      "2026-01-01 info acquire HIT kind=LCP request_id=7 space=1 prompt=44 matched=17 cached=17\n");
  ASSERT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(read.status().message().find("never holds tokens"), absl::string_view::npos)
      << read.status();
}

TEST_F(ReadTraceTest, BadLinesAreLeftOutAndCountedFromTheFirst) {
  const std::string good = "{\"timestamp\": 1, \"hash_ids\": [1, 2]}\n";
  for (const std::string bad :
       {"[]", "{}", "{", "{\"hash_ids\": [1.5]}", "{\"hash_ids\": [\"a\"]}",
        "{\"hash_ids\": [[1]]}", "{\"hash_ids\": [{}]}", "{\"hash_ids\": [18446744073709551615]}",
        "{\"hash_ids\": 3}", "{\"prompt\": [1, 2]}", "{\"prompt\": \"text\"}", "\x01\xff\xfe",
        "not a request", "{\"hash_ids\": [1]} {}", "{\"hash_ids\": [1,", "{\"prompt\": [-1]}",
        "{\"prompt\": [\"a\", \"b\"]}"}) {
    const auto read = Read(good + bad + "\n\n" + good + bad + "\n");
    ASSERT_TRUE(read.ok()) << bad << ": " << read.status();
    EXPECT_EQ(read->trace.requests.size(), 2u) << bad;
    EXPECT_EQ(read->bad_lines, 2u) << bad;
    EXPECT_EQ(read->first_bad_line, 2u) << bad;
    EXPECT_STRNE(read->first_why, "") << bad;
    EXPECT_EQ(read->trace.references.size(), 4u) << "a bad line leaves nothing behind: " << bad;
  }
}

TEST_F(ReadTraceTest, WhatIsNoTraceIsRefused) {
  EXPECT_EQ(Read("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Read("\n\n").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Read("no trace at all").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Read("\x1f\x8b packed").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadTraceFile(folder_ + "/none", {}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadTraceFile(folder_, {}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ReadTraceTest, PackedTracesAreReadAndDamagedOnesRefused) {
  const std::string text = "{\"timestamp\": 1, \"hash_ids\": [1, 2, 3]}\n";
  const std::string packed = Packed(text + text);
  const auto read = Read(packed);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->trace.requests.size(), 2u);
  EXPECT_EQ(Read(packed.substr(0, packed.size() - 2)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Read(packed.substr(0, 6) + std::string(40, '\xff')).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ReadTraceTest, LinesAndReferencesAreBounded) {
  const std::string line = "{\"timestamp\": 1, \"hash_ids\": [1, 2, 3]}\n";
  std::string packed_long = "{\"prompt\": \"" + std::string(size_t{4} << 20, 'a') + "\"}\n";
  const auto long_line = Read(Packed(packed_long + line), {.most_line_bytes = 1 << 10});
  ASSERT_TRUE(long_line.ok()) << long_line.status();
  EXPECT_EQ(long_line->bad_lines, 1u);
  EXPECT_EQ(long_line->trace.requests.size(), 1u);
  const auto cut = Read(line + line + line + line, {.most_references = 6});
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->trace.requests.size(), 2u);
  EXPECT_TRUE(cut->cut);
  EXPECT_EQ(cut->lines, 2u);
}

TEST_F(ReadTraceTest, RandomBytesNeverCrashIt) {
  std::mt19937 random(3);
  const std::string alphabet = "{}[]\",:0123456789.eE-\\n \n\nhash_idsprompt\x01\xff";
  for (int i = 0; i < 3'000; ++i) {
    std::string text;
    for (size_t length = random() % 200; text.size() < length;) {
      if (random() % 12 == 0) text += "{\"prompt\": [1, 2";
      if (random() % 12 == 0) text += "prompt_token_ids: [";
      text += alphabet[random() % alphabet.size()];
    }
    const auto read = Read(text, {.block_tokens = 2});
    EXPECT_TRUE(!read.ok() || !read->trace.requests.empty());
  }
}

}  // namespace
}  // namespace prefixd::sizing
