// What scripts read: names, types and units of the JSON.
#include "client/cli/json.h"

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "client/cli/names.h"
#include "tests/cli/samples.h"

namespace prefixd::cli {
namespace {

using nlohmann::json;

TEST(JsonTest, IntegersOf64BitsAreNumbers) {
  v1::FlushReply reply;
  reply.set_flushed_bytes(uint64_t{1} << 60);
  const json object = json::parse(ReplyJson(reply));
  EXPECT_EQ(object["flushed_bytes"].type(), json::value_t::number_unsigned);
  EXPECT_EQ(object["flushed_bytes"], uint64_t{1} << 60);
  EXPECT_EQ(object["dirty_bytes"], 0) << "a zero is there too";
}

TEST(JsonTest, IdsAreTheDigitsThatTablesShow) {
  const json lease = json::parse(ReplyJson(SampleLeases()))["leases"][0];
  EXPECT_EQ(lease["lease"], "0000000000000011");
  EXPECT_EQ(lease["session"], HexId(0x5f3a000000000000u));
  EXPECT_EQ(lease["space_id"], HexId(SampleId(0x3f)));
  EXPECT_EQ(lease["age_s"], 4.0);
}

TEST(JsonTest, EnumValuesAreTheWordsOfTheCounters) {
  v1::WhyReply reply = SampleWhy();
  reply.mutable_answers(1)->set_kind(v1::MATCH_KIND_LCP);
  reply.mutable_answers(0)->set_kind(static_cast<v1::MatchKind>(99));
  const json answers = json::parse(ReplyJson(reply))["answers"];
  EXPECT_EQ(answers[0]["match_ended_by"], "diverged");
  EXPECT_EQ(answers[0]["kind"], "unknown (99)");
  EXPECT_EQ(answers[0]["shortened_by"], json::array());
  EXPECT_EQ(answers[1]["kind"], "lcp");
  EXPECT_EQ(answers[1]["shortened_by"][0]["reason"], "ram_full");
}

TEST(JsonTest, CountersLatenciesAndSettingsAreFoundByName) {
  const json stats = json::parse(StatsJson(SampleStats()));
  EXPECT_EQ(stats["counters"]["tokens.requested"], 12'345);
  EXPECT_EQ(stats["latencies"]["rpc.acquire"]["count"], 4);
  EXPECT_EQ(stats["latencies"]["rpc.acquire"]["p50_us"], 96);
  EXPECT_EQ(stats["latencies"]["rpc.acquire"]["buckets"][6], 4);
  v1::GetConfigReply config;
  EXPECT_EQ(json::parse(ReplyJson(config))["settings"], json::object());
  v1::GetConfigReply::Setting* setting = config.add_settings();
  setting->set_name("ram");
  setting->set_value("256MiB");
  setting->set_source("flag");
  EXPECT_EQ(json::parse(ReplyJson(config))["settings"]["ram"],
            json({{"value", "256MiB"}, {"source", "flag"}}));
}

TEST(JsonTest, ASpaceHasItsSizesBesideItsIdentity) {
  v1::ListSpacesReply reply;
  *reply.add_spaces() = SampleSpace(0x3f);
  const json space = json::parse(SpacesJson(reply))["spaces"][0];
  EXPECT_EQ(space["space_id"], HexId(SampleId(0x3f)));
  EXPECT_EQ(space["ram_payload_bytes"], 27'234'816);
  EXPECT_EQ(space["identity"]["weights_digest"], HexId(SampleId(0xab)));
  EXPECT_EQ(space["identity"]["groups"][0]["kind"], "full");
  EXPECT_EQ(space["identity"]["groups"][0]["layers"][3], 5);
  EXPECT_FALSE(space["identity"].contains("salt"));
}

TEST(JsonTest, WhatWasAskedForStandsBesideTheReply) {
  const v1::ListSpacesReply::Space space = SampleSpace(0x3f);
  v1::Answer answer;
  answer.set_matched_tokens(7);
  const json match =
      json::parse(MatchJson({.space = space, .requested_tokens = 9, .answer = answer}));
  EXPECT_EQ(match["requested_tokens"], 9);
  EXPECT_EQ(match["matched_tokens"], 7);
  EXPECT_EQ(match["model"], "Qwen3-0.6B");
  v1::SetSpaceLimitsRequest request;
  request.set_space_id(SampleId(0x3f));
  request.mutable_limits()->set_ttl_ms(1'000);
  const json limits = json::parse(LimitsJson(request, {}));
  EXPECT_EQ(limits["space_id"], HexId(SampleId(0x3f)));
  EXPECT_EQ(limits["limits"]["ttl_ms"], 1'000);
  EXPECT_EQ(limits["remembered"], false);
}

}  // namespace
}  // namespace prefixd::cli
