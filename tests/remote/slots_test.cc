// Keys to slots, slots to servers, and servers as they are written.
#include "remote/slots.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "remote/redis_options.h"
#include "remote/server_settings.h"

namespace prefixd::remote {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(SlotsTest, KeysHashAsRedisClusterSays) {
  EXPECT_EQ(SlotOf("123456789"), 0x31c3);  // CRC16/XMODEM's check value
  EXPECT_EQ(SlotOf(""), 0);
  EXPECT_EQ(SlotOf("{user1000}.following"), SlotOf("user1000"));
  EXPECT_EQ(SlotOf("foo{}{bar}"), SlotOf("foo{}{bar}"));
  EXPECT_NE(SlotOf("foo{}{bar}"), SlotOf("bar"));
  EXPECT_EQ(SlotOf("foo{{bar}}zap"), SlotOf("{bar"));
  EXPECT_EQ(SlotOf("foo{bar}{zap}"), SlotOf("bar"));
}

Reply Number(int64_t number) { return {.kind = Reply::Kind::kInteger, .integer = number}; }
Reply Text(const std::string& text) { return {.kind = Reply::Kind::kText, .text = text}; }
Reply List(std::vector<Reply> items) {
  return {.kind = Reply::Kind::kArray, .items = std::move(items)};
}

TEST(SlotsTest, AServerThatDoesNotKnowItsAddressIsWhereItWasAsked) {
  const Reply reply = List({
      List({Number(0), Number(100), List({Text("10.0.0.1"), Number(7000), Text("id")})}),
      List({Number(101), Number(200), List({Text("?"), Number(7001)}),
            List({Text("x"), Number(1)})}),
      List({Number(201), Number(16383), List({Reply{}, Number(7002)})}),
  });
  const auto ranges = ReadSlots(reply, "seed");
  ASSERT_TRUE(ranges.ok());
  EXPECT_THAT(*ranges, ElementsAre(SlotRange{0, 100, {"10.0.0.1", 7000}},
                                   SlotRange{101, 200, {"seed", 7001}},
                                   SlotRange{201, 16383, {"seed", 7002}}));
}

TEST(SlotsTest, OtherRepliesAreRefused) {
  for (const Reply& reply : {Number(1), List({Number(1)}),
                             List({List({Number(0), Number(16384), List({Text("a"), Number(1)})})}),
                             List({List({Number(0), Number(1), List({Text("a"), Number(70000)})})}),
                             List({List({Number(-1), Number(1), List({Text("a"), Number(1)})})})}) {
    EXPECT_FALSE(ReadSlots(reply, "seed").ok());
  }
}

TEST(SlotsTest, RedirectionsNameAServer) {
  Endpoint to;
  EXPECT_TRUE(FromServer("10.0.0.1:7000", "seed", &to));
  EXPECT_EQ(to, (Endpoint{"10.0.0.1", 7000}));
  EXPECT_TRUE(FromServer("fd00::3:7000", "seed", &to));
  EXPECT_EQ(to, (Endpoint{"fd00::3", 7000}));
  EXPECT_TRUE(FromServer(":7000", "seed", &to));
  EXPECT_EQ(to, (Endpoint{"seed", 7000}));
  for (const char* const bad : {"", "a", "a:", "a:0", "a:70000", "a:1x"}) {
    EXPECT_FALSE(FromServer(bad, "seed", &to)) << bad;
  }
}

TEST(RedisUrlTest, NamesSeedsAndTls) {
  const auto plain = ParseRedisUrl("redis://a,b:7000,[fd00::3]:1/");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_FALSE(plain->tls);
  EXPECT_THAT(plain->seeds,
              ElementsAre(Endpoint{"a", 6379}, Endpoint{"b", 7000}, Endpoint{"fd00::3", 1}));
  EXPECT_TRUE(ParseRedisUrl("rediss://a")->tls);
}

TEST(RedisUrlTest, MistakesAreToldAndPasswordsAreNotRepeated) {
  for (const char* const url : {"", "a:6379", "http://a", "redis://", "redis://a,,b",
                                "redis://a:", "redis://a:0", "redis://a:70000", "redis://a/1",
                                "redis://fd00::3", "redis://[fd00::3", "redis://[fd00::3]7"}) {
    EXPECT_EQ(ParseRedisUrl(url).status().code(), absl::StatusCode::kInvalidArgument) << url;
  }
  for (const char* const url : {"redis://u:secret@a", "u:secret@a", "redis:/u:secret@a:1"}) {
    const std::string why(ParseRedisUrl(url).status().message());
    EXPECT_THAT(why, HasSubstr("--remote-password-file")) << url;
    EXPECT_THAT(why, Not(HasSubstr("secret"))) << url;
  }
}

std::vector<std::string> Warnings(const std::string& maxmemory, const std::string& policy,
                                  const std::string& clients, const std::string& appendonly,
                                  const std::string& save) {
  std::vector<Reply> replies;
  for (const std::string& value : {maxmemory, policy, clients, appendonly, save}) {
    replies.push_back(value == "unknown" ? List({}) : List({Text("name"), Text(value)}));
  }
  return SettingsWarnings(replies, "me");
}

TEST(ServerSettingsTest, ACacheThatIsSetUpAsAdvisedHasNoWarnings) {
  EXPECT_THAT(Warnings("64000000", "allkeys-lru", "5%", "no", ""), IsEmpty());
  EXPECT_THAT(Warnings("64000000", "allkeys-lru", "unknown", "unknown", "unknown"), IsEmpty());
}

TEST(ServerSettingsTest, EachSettingThatCostsSomethingIsNamed) {
  EXPECT_THAT(Warnings("1", "noeviction", "5%", "no", ""), ElementsAre(HasSubstr("writes fail")));
  EXPECT_THAT(Warnings("1", "volatile-lru", "5%", "no", ""),
              ElementsAre(HasSubstr("nothing of prefixd")));
  EXPECT_THAT(Warnings("1", "allkeys-lfu", "5%", "no", ""),
              ElementsAre(HasSubstr("allkeys-lru is advised")));
  EXPECT_THAT(Warnings("0", "noeviction", "5%", "no", ""),
              ElementsAre(HasSubstr("maxmemory is 0")));
  EXPECT_THAT(Warnings("1", "allkeys-lru", "0", "no", ""),
              ElementsAre(HasSubstr("maxmemory-clients")));
  EXPECT_THAT(Warnings("1", "allkeys-lru", "5%", "yes", "3600 1"),
              ElementsAre(HasSubstr("appendonly"), HasSubstr("save is on")));
}

TEST(ServerSettingsTest, AServerThatDoesNotShowThemIsSaidToBeUnchecked) {
  const std::vector<Reply> replies(5, {.kind = Reply::Kind::kError, .text = "NOPERM no config"});
  EXPECT_THAT(SettingsWarnings(replies, "me"), ElementsAre(HasSubstr("cannot be checked")));
}

TEST(ServerSettingsTest, OneLineNamesAllServersOfAWarning) {
  EXPECT_THAT(JoinWarnings({{"a:1", {"x", "y"}}, {"b:1", {"x"}}}),
              ElementsAre("a:1, b:1: x", "a:1: y"));
}

}  // namespace
}  // namespace prefixd::remote
