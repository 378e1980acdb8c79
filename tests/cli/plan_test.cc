// prefixctl plan: its command line, what it says, and its plot.
#include "client/cli/plan.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "client/cli/commands.h"

namespace prefixd::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class PlanCommandTest : public ::testing::Test {
 protected:
  struct Ran {
    int code = 0;
    std::string out, err;
  };
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "prefixd-plan-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
    return folder_ + "/" + name;
  }
  static std::string ReadFile(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  static Ran Run(std::vector<std::string> arguments) {
    std::istringstream in;
    std::ostringstream out, err;
    Surroundings surroundings{.environment = {},
                              .exists = [](const std::string&) { return false; }};
    Ran ran;
    arguments.insert(arguments.begin(), "plan");
    ran.code = RunPrefixctl(arguments, surroundings, {in, out, err});
    ran.out = out.str();
    ran.err = err.str();
    return ran;
  }
  // 200 prompts of 20 users, each 30 blocks behind a prompt that all share.
  std::string Chats() const {
    std::string text;
    for (int i = 0; i < 200; ++i) {
      text += "{\"timestamp\": " + std::to_string(i) + ", \"hash_ids\": [1, 2";
      for (int at = 0; at < 30; ++at) text += ", " + std::to_string(100 * (i % 20 + 1) + at);
      text += "]}\n";
    }
    return Write("chats.jsonl", text);
  }
  std::string folder_;
};

// Whether tags open and close as XML wants it, with attributes in quotes and no bare & or <.
bool IsWellFormed(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = 0; at < xml.size();) {
    if (xml[at] == '&') {
      const size_t end = xml.find(';', at);
      if (end == std::string::npos || end - at > 6) return false;
    }
    if (xml[at] == '>') return false;
    if (xml[at++] != '<') continue;
    const size_t end = xml.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = xml.substr(at, end - at);
    at = end + 1;
    if (tag.find('<') != std::string::npos) return false;
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return false;
    if (tag.back() == '/') continue;
    if (tag[0] != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
      continue;
    }
    if (open.empty() || open.back() != tag.substr(1)) return false;
    open.pop_back();
  }
  return open.empty();
}

TEST_F(PlanCommandTest, ItSaysTheTableTheSizesThatReachAShareAndTheNextDoubling) {
  const Ran ran = Run({Chats(), "--bytes-per-token", "131072", "--ram", "1GiB,8GiB,64GiB", "--ssd",
                       "0,256GiB", "--prefill-rate", "1000"});
  ASSERT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("200 requests, 3,276,800 tokens asked for"));
  EXPECT_THAT(ran.out, HasSubstr("308,224 different tokens, 37.6 GiB at 131,072 bytes a token"));
  EXPECT_THAT(ran.out, HasSubstr("90.6 % can be hit"));
  EXPECT_THAT(ran.out, HasSubstr("--ssd 256.0 GiB"));
  EXPECT_THAT(ran.out, HasSubstr("90 % of what can be hit: --ram "));
  EXPECT_THAT(ran.out, HasSubstr("The next doubling, from --ram "));
  EXPECT_THAT(ran.out, HasSubstr("time of prefill saved"));
  EXPECT_THAT(ran.out, Not(HasSubstr("left out")));
}

TEST_F(PlanCommandTest, JsonHasEveryCellInNumbers) {
  const Ran ran = Run({Chats(), "--bytes-per-token", "128KiB", "--ram", "8GiB,64GiB", "--ssd",
                       "off,256GiB", "--json"});
  ASSERT_EQ(ran.code, kExitOk) << ran.err;
  const nlohmann::json json = nlohmann::json::parse(ran.out);
  EXPECT_EQ(json["requests"], 200);
  ASSERT_EQ(json["cells"].size(), 4u);
  EXPECT_EQ(json["cells"][1]["ram_bytes"], uint64_t{8} << 30);
  EXPECT_EQ(json["cells"][1]["ssd_bytes"], uint64_t{256} << 30);
  EXPECT_NEAR(json["cells"][2]["hit_rate"].get<double>(), 0.906, 0.001);
  EXPECT_EQ(json["cells"][2]["ssd_hit_tokens"], 0);
  EXPECT_GT(json["cells"][1]["ssd_hit_tokens"], 0);
}

TEST_F(PlanCommandTest, ThePlotIsXmlWithAxesAndNamesForLightAndDarkPages) {
  const std::string svg_path = folder_ + "/plan.svg";
  std::filesystem::rename(Chats(), folder_ + "/a <b> & \"c\".jsonl");
  const Ran ran = Run({folder_ + "/a <b> & \"c\".jsonl", "--bytes-per-token", "131072", "--ram",
                       "1GiB,8GiB,64GiB", "--ssd", "0,64GiB,256GiB", "--svg", svg_path});
  ASSERT_EQ(ran.code, kExitOk) << ran.err;
  const std::string svg = ReadFile(svg_path);
  EXPECT_TRUE(IsWellFormed(svg)) << svg;
  EXPECT_THAT(svg, HasSubstr("a &lt;b&gt; &amp; &quot;c&quot;.jsonl"));
  for (const char* const text :
       {">tokens that hit</text>", ">--ram, the whole budget</text>", ">100 %</text>",
        ">0 %</text>", ">8.0 GiB</text>", ">no SSD</text>", ">--ssd 64.0 GiB</text>",
        ">--ssd 256.0 GiB</text>", "at most 90.6 %", "prefers-color-scheme: dark"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  size_t lines = 0;
  for (size_t at = svg.find("<polyline"); at != std::string::npos;
       at = svg.find("<polyline", at + 1)) {
    ++lines;
  }
  EXPECT_EQ(lines, 3u);
}

TEST_F(PlanCommandTest, WhatIsNoXmlIsNotTakenForIt) {
  EXPECT_TRUE(IsWellFormed("<a x=\"1\"><b/></a>"));
  for (const char* const bad : {"<a>", "<a></b>", "<a x=\"1></a>", "<a>&</a>", "<a><b></a></b>"}) {
    EXPECT_FALSE(IsWellFormed(bad)) << bad;
  }
}

TEST_F(PlanCommandTest, DamagedLinesAreSaidWithTheNumberOfTheFirst) {
  const std::string path =
      Write("damaged", "{\"hash_ids\": [1, 2]}\n{\"hash_ids\": [1,\n\n???\n{\"hash_ids\": [1]}\n");
  const Ran ran = Run({path, "--bytes-per-token", "131072", "--ram", "1GiB", "--ssd", "0"});
  ASSERT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("left out     2 lines of 5; the first is line 2: it is no whole "
                                 "JSON object"));
  const Ran none = Run({Write("none", "hello\n"), "--bytes-per-token", "131072"});
  EXPECT_EQ(none.code, kExitRefused);
  EXPECT_THAT(none.err, HasSubstr("holds no request; line 1: it is no request"));
}

TEST_F(PlanCommandTest, AModelsFolderSaysWhatATokenTakes) {
  const std::string llama =
      "{\"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, "
      "\"hidden_size\": 4096, \"torch_dtype\": \"bfloat16\"}";
  Write("config.json", llama);
  EXPECT_EQ(BytesPerToken(folder_).value(), 131'072u);
  Write("config.json", "{\"text_config\": " + llama + "}");
  EXPECT_EQ(BytesPerToken(folder_).value(), 131'072u);
  for (const char* const name : {"dtype", "torch_dtype"}) {
    Write("config.json", llama.substr(0, llama.rfind(", ")) + ", \"" + name + "\": \"float32\"}");
    EXPECT_EQ(BytesPerToken(folder_).value(), 262'144u) << name;
  }
  Write("config.json", llama);
  const Ran ran = Run({Chats(), "--model", folder_, "--ram", "1GiB", "--ssd", "0"});
  ASSERT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("at 131,072 bytes a token"));
  for (const char* const bad : {"", "[]", "{}", "{\"num_hidden_layers\": -1}",
                                "{\"num_hidden_layers\": 4, \"num_attention_heads\": 0}",
                                "{\"layer_types\": [\"sliding_attention\"]}",
                                "{\"num_hidden_layers\": 61, \"num_attention_heads\": 128, "
                                "\"hidden_size\": 7168, \"kv_lora_rank\": 512}"}) {
    Write("config.json", bad);
    EXPECT_EQ(BytesPerToken(folder_).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST_F(PlanCommandTest, FlagsThatAreWrongAreNamed) {
  const std::string path = Chats();
  const auto refused = [&](std::vector<std::string> flags, const char* named) {
    flags.insert(flags.begin(), path);
    const Ran ran = Run(flags);
    EXPECT_EQ(ran.code, kExitUsage) << named;
    EXPECT_THAT(ran.err, HasSubstr(named));
  };
  refused({}, "--bytes-per-token");
  refused({"--bytes-per-token", "0"}, "--bytes-per-token");
  const Ran huge = Run({path, "--bytes-per-token", "65MiB"});
  EXPECT_NE(huge.code, kExitOk);
  EXPECT_THAT(huge.err, HasSubstr("a token takes 65.0 MiB, not 1 B to 64 MiB"));
  refused({"--bytes-per-token", "128KiB", "--ram", "1GiB,much"}, "--ram");
  refused({"--bytes-per-token", "128KiB", "--ssd", "10%"}, "--ssd");
  refused({"--bytes-per-token", "128KiB", "--format", "csv"}, "--format");
  refused({"--bytes-per-token", "128KiB", "--block-tokens", "17"}, "--block-tokens");
  refused({"--bytes-per-token", "128KiB", "--ssd-write-share", "much"}, "--ssd-write-share");
  refused({"--bytes-per-token", "128KiB", "--prefill-rate", "-1"}, "--prefill-rate");
}

}  // namespace
}  // namespace prefixd::cli
