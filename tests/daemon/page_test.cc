// The page without a browser: headers, refusals, data, and the words that explain.
#include "daemon/page/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

#include "daemon/page/data.h"
#include "daemon/page/files.h"
#include "daemon/page/plain_answers.h"
#include "daemon/page/request_story.h"

namespace prefixd::daemon {
namespace {

using nlohmann::json;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kHostile[] = "</script><script>alert(1)</script>";
constexpr char kSalt[] = "a salt that nobody may see";

block::SpaceSummary SpaceOf(int number) {
  block::SpaceSummary space;
  space.id[0] = static_cast<std::byte>(number >> 8);
  space.id[1] = static_cast<std::byte>(number);
  space.identity.model = number == 0 ? kHostile : "model " + std::to_string(number);
  space.identity.salt = kSalt;
  space.tokens.requested = static_cast<uint64_t>(1000 + number);
  space.tokens.restorable = {.ram = 500, .ssd = 0, .remote = 0};
  space.ram_extent_bytes = static_cast<uint64_t>(5000 - number);
  return space;
}

class FakeSource final : public PageSource {
 public:
  block::Stats Stats() const override {
    block::Stats all = stats;
    all.spaces = spaces;
    return all;
  }
  cache::ArenaPlace Arena() const override { return arena; }
  std::vector<block::NamedCount> RamShares() const override { return {{"arena", 100}}; }
  std::string Health() const override { return "serving"; }
  std::vector<block::SpaceSummary> Spaces() const override { return spaces; }
  std::vector<block::SessionInfo> Sessions() const override { return sessions; }
  std::vector<block::LeaseInfo> Leases() const override { return {}; }
  std::vector<block::PinInfo> Pins() const override { return {}; }
  block::PastAnswers Why(const block::WhyQuery& query) const override {
    block::PastAnswers found{.answers = answers, .remembered = answers.size()};
    if (found.answers.size() > query.last) found.answers.resize(query.last);
    return found;
  }
  block::HotPrefixes Prefixes(const block::SpaceId* space, uint32_t most) const override {
    asked_all_spaces = space == nullptr;
    block::HotPrefixes found;
    found.prefixes.resize(most + 10);
    return found;
  }
  std::vector<Setting> Settings() const override { return {{"ram", "2GiB", "flag"}}; }

  block::Stats stats;
  cache::ArenaPlace arena{.shared = true};
  std::vector<block::SpaceSummary> spaces;
  std::vector<block::SessionInfo> sessions;
  std::vector<block::PastAnswer> answers;
  mutable bool asked_all_spaces = false;
};

class PageTest : public ::testing::Test {
 protected:
  PageTest() { page_.Show(source_); }
  PageReply Get(std::string_view path, std::string_view query = "",
                std::string_view host = "127.0.0.1:9464", std::string_view site = "same-origin") {
    return page_.Answer({.path = path, .query = query, .host = host, .site = site});
  }
  json Data(std::string_view path, std::string_view query = "") {
    const PageReply reply = Get(path, query);
    EXPECT_EQ(reply.status, "200 OK") << path << ": " << reply.body;
    EXPECT_EQ(reply.type, "application/json; charset=utf-8");
    return json::parse(reply.body, nullptr, false);
  }

  const std::shared_ptr<FakeSource> source_ = std::make_shared<FakeSource>();
  Page page_;
};

TEST_F(PageTest, EveryAnswerForbidsForeignContentScriptsInTextAndFrames) {
  std::vector<std::string> paths = {"/", "/page", "/page/state.json", "/page/no", "/page/no.json"};
  for (const PageFile& file : PageFiles()) paths.emplace_back(file.path);
  EXPECT_GT(paths.size(), 10u);
  for (const std::string& path : paths) {
    const std::string headers = Get(path).headers;
    EXPECT_THAT(headers, HasSubstr("Content-Security-Policy: default-src 'none'; "
                                   "script-src 'self'; style-src 'self'; "))
        << path;
    EXPECT_THAT(headers, HasSubstr("frame-ancestors 'none'")) << path;
    EXPECT_THAT(headers, Not(HasSubstr("unsafe"))) << path;
    EXPECT_THAT(headers, HasSubstr("Referrer-Policy: no-referrer\r\n")) << path;
    EXPECT_THAT(headers, HasSubstr("Cross-Origin-Resource-Policy: same-origin\r\n")) << path;
    EXPECT_THAT(headers, EndsWith("\r\n")) << path;
  }
}

TEST_F(PageTest, FilesHaveTheirTypesNoInlineCodeAndNoForeignAddress) {
  std::set<std::string_view> names;
  for (const PageFile& file : PageFiles()) {
    names.insert(file.path);
    const PageReply reply = Get(file.path);
    EXPECT_EQ(reply.body, file.bytes);
    EXPECT_EQ(reply.type, file.type);
    for (const char* const foreign :
         {"src=\"http", "href=\"http", "@import", "url(", "<style",
          " style=", "onclick=", "innerHTML", "eval(", "insertAdjacent", "document.write"}) {
      EXPECT_EQ(file.bytes.find(foreign), std::string_view::npos) << file.path << ": " << foreign;
    }
  }
  EXPECT_TRUE(names.contains("/page/"));
  EXPECT_TRUE(names.contains("/page/page.js"));
  EXPECT_EQ(Get("/page/page.css").type, "text/css; charset=utf-8");
}

TEST_F(PageTest, AForeignNameForThisHostIsRefused) {
  for (const char* const host : {"localhost", "LOCALHOST:9464", "127.0.0.1", "127.0.0.1:80",
                                 "[::1]:9464", "10.0.0.7:9464", "[fe80::1]"}) {
    EXPECT_EQ(Get("/page/state.json", "", host).status, "200 OK") << host;
  }
  for (const char* const host : {"", "evil.example", "evil.example:9464", "127.0.0.1.evil.example",
                                 "localhost.evil.example", "[evil", "1", "127.1"}) {
    EXPECT_THAT(Get("/page/", "", host).status, StartsWith("403")) << host;
    EXPECT_THAT(Get("/page/state.json", "", host).status, StartsWith("403")) << host;
  }
}

TEST_F(PageTest, ALinkFromAnotherSiteLeadsHereButItsScriptsGetNoData) {
  EXPECT_EQ(Get("/page/", "", "localhost", "cross-site").status, "200 OK");
  EXPECT_THAT(Get("/page/state.json", "", "localhost", "cross-site").status, StartsWith("403"));
  EXPECT_THAT(Get("/page/state.json", "", "localhost", "same-site").status, StartsWith("403"));
  EXPECT_EQ(Get("/page/state.json", "", "localhost", "").status, "200 OK") << "no browser";
}

TEST_F(PageTest, WithoutACacheThePageIsThereAndItsDataIsNot) {
  page_.Show(nullptr);
  EXPECT_EQ(Get("/page/").status, "200 OK");
  EXPECT_THAT(Get("/page/state.json").status, StartsWith("503"));
  page_.Show(source_);
  EXPECT_EQ(Get("/page/state.json").status, "200 OK");
}

TEST_F(PageTest, QueriesThatMakeNoSenseAreRefused) {
  for (const char* const query :
       {"last=0", "last=101", "last=x", "below=2", "below=-1", "what=1"}) {
    EXPECT_THAT(Get("/page/requests.json", query).status, StartsWith("400")) << query;
  }
  EXPECT_THAT(Get("/page/requests.json", "id=" + std::string(300, 'x')).status, StartsWith("400"));
  EXPECT_THAT(Get("/page/spaces.json", "sort=luck").status, StartsWith("400"));
  EXPECT_THAT(Get("/page/spaces.json", "from=-1").status, StartsWith("400"));
  EXPECT_THAT(Get("/page/prefixes.json", "space=12").status, StartsWith("400"));
  EXPECT_THAT(Get("/page/spaces.json", std::string(600, 'x')).status, StartsWith("414"));
  EXPECT_THAT(Get("/page/other.json").status, StartsWith("404"));
  EXPECT_THAT(Get("/page/../etc/passwd").status, StartsWith("404"));
}

TEST_F(PageTest, NoSpacesAndAThousandAreShownFiftyAtATime) {
  EXPECT_THAT(Data("/page/spaces.json")["spaces"], IsEmpty());
  for (int i = 0; i < 1000; ++i) source_->spaces.push_back(SpaceOf(i));
  page_.Show(source_);  // nothing is kept of before
  const PageReply reply = Get("/page/spaces.json");
  EXPECT_LT(reply.body.size(), 50'000u);
  const json data = json::parse(reply.body);
  EXPECT_EQ(data["total"], 1000);
  EXPECT_EQ(data["spaces"].size(), 50u);
  EXPECT_EQ(data["spaces"][0]["model"], "model 999") << "asked for most";
  EXPECT_EQ(Data("/page/spaces.json", "sort=ram")["spaces"][0]["model"], kHostile);
  const json found = Data("/page/spaces.json", "find=MODEL%2099&from=3");
  EXPECT_EQ(found["matching"], 11);
  EXPECT_EQ(found["spaces"].size(), 8u);
  EXPECT_LT(Get("/page/state.json").body.size(), 10'000u);
}

TEST_F(PageTest, TextsFromOutsideComeWholeAndSaltsDoNot) {
  source_->spaces = {SpaceOf(0)};
  block::SessionInfo session;
  session.worker = std::string("\xff\xfe") + kHostile;  // not UTF-8
  source_->sessions = {session};
  EXPECT_EQ(Data("/page/spaces.json")["spaces"][0]["model"], kHostile);
  const std::string worker = Data("/page/sessions.json")["sessions"][0]["worker"];
  EXPECT_THAT(worker, EndsWith(kHostile));
  for (const char* const path : {"/page/spaces.json", "/page/state.json"}) {
    EXPECT_THAT(Get(path).body, Not(HasSubstr(kSalt))) << path;
  }
}

TEST_F(PageTest, ListsAreBoundedWhateverTheDaemonHolds) {
  source_->sessions.resize(5000);
  source_->answers.resize(4096);
  EXPECT_EQ(Data("/page/sessions.json")["sessions"].size(), kMostPageSessions);
  EXPECT_EQ(Data("/page/sessions.json")["sessions_total"], 5000);
  EXPECT_EQ(Data("/page/requests.json")["requests"].size(), 50u);
  EXPECT_EQ(Data("/page/requests.json", "last=100")["requests"].size(), 100u);
  EXPECT_EQ(Data("/page/prefixes.json")["prefixes"].size(), kMostPagePrefixes);
  EXPECT_TRUE(source_->asked_all_spaces);
  Data("/page/prefixes.json", "space=" + std::string(64, 'a'));
  EXPECT_FALSE(source_->asked_all_spaces);
}

TEST_F(PageTest, TheStateHasTheFiguresOfTheTiers) {
  block::Stats& stats = source_->stats;
  stats.uptime_s = 7200;
  stats.ram_budget_bytes = 1000;
  stats.ram_parts = {{"arena", 600}, {"index", 50}, {"staging", 0}};
  stats.ssd_budget_bytes = 4000;
  stats.ssd_file_bytes = 1234;
  stats.counters = {{"bytes.spilled", 3000}, {"bytes.rewritten", 1000}, {"tokens.used", 42}};
  const json data = Data("/page/state.json");
  EXPECT_EQ(data["ram"]["used_bytes"], 650);
  EXPECT_EQ(data["ram"]["budget_bytes"], 1000);
  EXPECT_EQ(data["ram"]["parts"].size(), 2u);
  EXPECT_EQ(data["ssd"]["file_bytes"], 1234);
  EXPECT_EQ(data["ssd"]["written_bytes"], 4000);
  EXPECT_DOUBLE_EQ(data["ssd"]["sizes_a_day"], 12.0);
  EXPECT_EQ(data["totals"]["used"], 42);
  EXPECT_TRUE(data["far"].is_null());
  EXPECT_EQ(Data("/page/config.json")["settings"][0]["source"], "flag");
  EXPECT_TRUE(Data("/page/history.json")["points"].is_array());
}

TEST(PageHistoryTest, KeepsAnHourAndTellsWhatWasCountedMinutesAgo) {
  PageHistory history;
  EXPECT_EQ(history.Before(10, 300).requested, 0u);
  block::Stats stats;
  for (uint64_t i = 0; i < PageHistory::kMostPoints + 50; ++i) {
    stats.uptime_s = static_cast<double>(5 * i);
    stats.counters = {{"tokens.requested", i}};
    history.Add(stats);
  }
  EXPECT_EQ(history.Json()["points"].size(), PageHistory::kMostPoints);
  EXPECT_EQ(history.Before(stats.uptime_s, 300).requested, PageHistory::kMostPoints + 49 - 60);
}

// --- plain answers ---

std::vector<std::string> Answers(const block::Stats& stats, const PagePoint& before = {},
                                 const cache::ArenaPlace& arena = {.shared = true}) {
  std::vector<std::string> lines;
  for (const PlainAnswer& plain : PlainAnswers(stats, arena, before)) {
    lines.push_back(plain.level + ": " + plain.answer);
  }
  return lines;
}

TEST(PlainAnswersTest, ANewDaemonHasNothingToSay) {
  block::Stats stats;
  stats.ram_budget_bytes = 100;
  stats.ssd_budget_bytes = 100;
  EXPECT_THAT(Answers(stats),
              ElementsAre("note: Nobody has asked for anything yet.",
                          "good: No: RAM has evicted nothing, and is 0 % full.",
                          "good: Yes: nobody is reading. There is nothing to clear.",
                          "good: A stop and a kill lose nothing; neither does a power cut: all is "
                          "on SSD."));
}

TEST(PlainAnswersTest, HitsOfTheLastMinutesCountNotThoseOfLongAgo) {
  block::Stats stats;
  stats.uptime_s = 1000;
  stats.counters = {{"tokens.requested", 20'000},
                    {"tokens.restorable.ram", 9'000},
                    {"tokens.restorable.ssd", 100}};
  PagePoint before;
  before.uptime_s = 700;
  EXPECT_THAT(Answers(stats, before)[0],
              StartsWith("good: Yes: 46 % of 20,000 tokens in the last 5 min, 46 % since"));
  before.requested = 10'000;
  before.ram = 9'000;
  EXPECT_THAT(Answers(stats, before)[0],
              StartsWith("warning: Hardly: 1 % of 10,000 tokens in the last 5 min, 46 % since"));
  before.requested = 20'000;
  EXPECT_THAT(Answers(stats, before)[0], StartsWith("note: No request of late; 46 %"));
}

TEST(PlainAnswersTest, EvictionsAreBadOnceTheyCostHits) {
  block::Stats stats;
  stats.uptime_s = 300;
  stats.counters = {{"tokens.requested", 1000}, {"bytes.evicted", 5 << 20}};
  for (int i = 0; i < 10; ++i) stats.ages.idle_at_eviction.Add(3'600'000);
  for (int i = 0; i < 10; ++i) stats.ages.reuse_gap.Add(1'000);
  EXPECT_THAT(Answers(stats)[1], StartsWith("good: They do no harm: 5.0 MiB in the last 5 min"));
  for (int i = 0; i < 100; ++i) stats.ages.reuse_gap.Add(30'000'000);
  EXPECT_THAT(Answers(stats)[1], StartsWith("warning: They may: "));
  stats.counters.push_back({"tokens.given_up", 250});
  EXPECT_THAT(Answers(stats)[1], StartsWith("warning: Yes, and they cost hits: 25 % of"));
  PagePoint before;
  before.evicted = 5 << 20;
  stats.counters.pop_back();
  EXPECT_THAT(Answers(stats, before)[1], StartsWith("good: Not now"));
}

TEST(PlainAnswersTest, AClearSaysWhoReadsAndWhatItCosts) {
  block::Stats stats;
  stats.spaces.resize(1);
  stats.spaces[0].stored_tokens = 4321;
  stats.leases = 2;
  stats.leased_bytes = 2 << 20;
  EXPECT_EQ(Answers(stats)[2],
            "note: Yes: 2 leases read 2.0 MiB, and may read them to the end. 4,321 stored tokens "
            "would be computed again.");
  stats.counters = {{"ssd.border_waits", 1}};
  EXPECT_THAT(Answers(stats)[2], StartsWith("warning: One is still waiting for the disk"));
}

TEST(PlainAnswersTest, WhatSurvivesDependsOnArenaAndDisk) {
  block::Stats stats;
  EXPECT_THAT(Answers(stats, {}, {.shared = false})[3], StartsWith("warning: Nothing survives"));
  EXPECT_THAT(Answers(stats)[3], HasSubstr("a reboot loses all"));
  stats.ssd_budget_bytes = 1;
  stats.dirty_bytes = 3 << 20;
  EXPECT_THAT(Answers(stats)[3], HasSubstr("a power cut now loses 3.0 MiB"));
}

TEST(PlainAnswersTest, TroublesAreNamedAndNoneIsMadeUp) {
  block::Stats stats;
  cache::ArenaPlace arena{.shared = true, .path = "/dev/shm/x.arena"};
  EXPECT_THAT(Troubles(stats, arena), IsEmpty());
  stats.counters = {{"ssd.failing", 1}, {"ssd.closed", 0}};
  arena.limited_to = 60 << 20;
  stats.remote.servers.resize(1);
  stats.remote.servers[0] = {.address = "10.0.0.7:6379", .open = true, .why = "refused"};
  EXPECT_THAT(Troubles(stats, arena),
              ElementsAre(HasSubstr("Writes to the SSD fail"), HasSubstr("60.0 MiB by /dev/shm"),
                          HasSubstr("10.0.0.7:6379 is given up for now: refused")));
}

// --- one request ---

block::PastAnswer Shortened() {
  block::PastAnswer past;
  past.request_id = "chat-17";
  past.requested_tokens = 3000;
  past.match = {.matched_tokens = 2000,
                .restorable_tokens = 1500,
                .kind = block::MatchKind::kLcp,
                .ended_by = block::EndReason::kDiverged,
                .diverged_sequences = 312,
                .shortened_by = {{.reason = block::ShortenReason::kEvicted, .tokens_lost = 500}},
                .ram_bytes = 1 << 20};
  past.remote_us = 100;
  past.match_us = 50;
  past.load_us = 1000;
  past.used_tokens = 1400;
  past.first_token_us = 5000;
  return past;
}

TEST(RequestStoryTest, StepsLeadFromThePromptToWhatWasUsed) {
  std::vector<uint32_t> left;
  std::vector<bool> loses;
  for (const StoryStep& step : StoryOf(Shortened())) {
    left.push_back(step.tokens);
    loses.push_back(step.loses);
  }
  EXPECT_THAT(left, ElementsAre(3000, 2000, 1500, 1500, 1400));
  EXPECT_THAT(loses, ElementsAre(false, true, true, false, true));
  const std::vector<StoryStep> steps = StoryOf(Shortened());
  EXPECT_EQ(steps[1].title, "Match ends: diverged");
  EXPECT_THAT(steps[1].text, HasSubstr("312 stored sequences"));
  EXPECT_THAT(steps[2].text, HasSubstr("500 tokens"));
  EXPECT_THAT(steps[3].text, HasSubstr("1.0 MiB in RAM"));
}

TEST(RequestStoryTest, EveryReasonHasWords) {
  block::PastAnswer past = Shortened();
  for (int i = 1; i <= static_cast<int>(block::ShortenReason::kCommonLength); ++i) {
    past.match.shortened_by = {{.reason = static_cast<block::ShortenReason>(i), .tokens_lost = 1}};
    EXPECT_THAT(StoryOf(past)[2].text, Not(HasSubstr("does not know"))) << i;
  }
  for (int i = 1; i <= static_cast<int>(block::EndReason::kIndexLoading); ++i) {
    past.match.ended_by = static_cast<block::EndReason>(i);
    EXPECT_THAT(StoryOf(past)[1].text, Not(HasSubstr("does not know a"))) << i;
  }
}

TEST(RequestStoryTest, AMissSaysThatTheWorkerComputesAll) {
  block::PastAnswer past;
  past.requested_tokens = 10;
  EXPECT_THAT(StoryOf(past).back().text, HasSubstr("computes the whole prompt"));
  EXPECT_THAT(StoryOf(past)[1].text, HasSubstr("prefixctl spaces --explain"));
  past.match.matched_tokens = 5;
  EXPECT_THAT(StoryOf(past)[1].text, Not(HasSubstr("--explain")));
  EXPECT_THAT(PhasesOf(past), IsEmpty());
}

TEST(RequestStoryTest, PhasesFollowEachOtherUpToTheFirstToken) {
  std::vector<std::string> spans;
  for (const StoryPhase& phase : PhasesOf(Shortened())) {
    spans.push_back(phase.name + " " + std::to_string(phase.begin_us) + "-" +
                    std::to_string(phase.end_us));
  }
  EXPECT_THAT(spans,
              ElementsAre("remote 0-100", "match 100-150", "load 150-1150", "compute 1150-5000"));
}

}  // namespace
}  // namespace prefixd::daemon
