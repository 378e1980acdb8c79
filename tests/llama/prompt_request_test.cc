// What is read of requests and answers without changing them.
#include "client/llama/prompt_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace prefixd::llama {
namespace {

using ::testing::HasSubstr;

TEST(PromptRequestTest, ASlotIsPutInAndEveryOtherByteStays) {
  EXPECT_EQ(WithSlot(R"({"prompt": "a", "seed": 18446744073709551615, "x": 1.10})", 3),
            R"({"id_slot":3,"prompt": "a", "seed": 18446744073709551615, "x": 1.10})");
  EXPECT_EQ(WithSlot(" { } ", 0), R"( {"id_slot":0 } )");
  const std::string body = WithSlot(R"({"prompt":"{"})", 12);
  EXPECT_EQ(nlohmann::json::parse(body).at("id_slot"), 12);
}

TEST(PromptRequestTest, OnlyCompletionsHavePrompts) {
  for (const char* const path : {"/completion", "/completions", "/v1/completions",
                                 "/chat/completions", "/v1/chat/completions"}) {
    EXPECT_TRUE(HasPrompt(path)) << path;
  }
  for (const char* const path : {"/", "/tokenize", "/v1/embeddings", "/completion/", "/slots/0"}) {
    EXPECT_FALSE(HasPrompt(path)) << path;
  }
}

// A server that nobody needs to ask.
TEST(PromptRequestTest, RequestsWhoseSlotIsNotOursSayWhy) {
  const LlamaServer nobody("http://127.0.0.1:1");
  const auto why = [&](const std::string& path, const std::string& body) {
    const auto prompt = PromptOf(path, body, nobody);
    EXPECT_EQ(prompt.status().code(), absl::StatusCode::kUnimplemented) << body;
    return std::string(prompt.status().message());
  };
  EXPECT_THAT(why("/completion", "{"), HasSubstr("not a JSON object"));
  EXPECT_THAT(why("/completion", "[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(why("/completion", R"({"prompt":"a","n":2})"), HasSubstr("n above 1"));
  EXPECT_THAT(why("/completion", R"({"prompt":"a","id_slot":0})"), HasSubstr("names a slot"));
  EXPECT_THAT(why("/completion", R"({"prompt":"a","lora":[]})"), HasSubstr("adapters"));
  EXPECT_THAT(why("/completion", R"({"prompt":"a","cache_prompt":false})"),
              HasSubstr("cache_prompt"));
  EXPECT_THAT(why("/completion", R"({"prompt":["a","b"]})"), HasSubstr("not one prompt"));
  EXPECT_THAT(why("/completion", R"({"prompt":[-1]})"), HasSubstr("not one prompt"));
  EXPECT_THAT(why("/completion", R"({})"), HasSubstr("not one prompt"));
  EXPECT_THAT(why("/v1/chat/completions", R"({"messages":[{"role":"user","content":
                  [{"type":"image_url","image_url":{"url":"x"}}]}]})"),
              HasSubstr("media"));
  EXPECT_THAT(why("/v1/chat/completions", R"({"messages":[7]})"), HasSubstr("media"));
  // One prompt in tokens, or in both: the server is asked.
  EXPECT_TRUE(absl::IsUnavailable(PromptOf("/completion", R"({"prompt":[1,2]})", nobody).status()));
  EXPECT_TRUE(
      absl::IsUnavailable(PromptOf("/completion", R"({"prompt":["a",2]})", nobody).status()));
}

TEST(PromptRequestTest, TheServersTimingsAreFoundAtTheEndOfAnAnswer) {
  const auto timings = TimingsIn(
      R"(data: {"timings":{"cache_n":1}} ... "timings":{"cache_n":7,"prompt_n":93,"prompt_ms":12.5}})");
  ASSERT_TRUE(timings.has_value());
  EXPECT_EQ(timings->cached_tokens, 7u);
  EXPECT_EQ(timings->computed_tokens, 93u);
  EXPECT_EQ(timings->prompt_ms, 12.5);
  EXPECT_FALSE(TimingsIn("").has_value());
  EXPECT_FALSE(TimingsIn(R"("timings":{"cache_n":)").has_value());
  EXPECT_FALSE(TimingsIn(R"("timings":null})").has_value());
  EXPECT_EQ(TimingsIn(R"("timings":{"cache_n":"x","prompt_ms":null})")->prompt_ms, 0);
}

}  // namespace
}  // namespace prefixd::llama
