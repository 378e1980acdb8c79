// The screens, character for character: what a person sees is the contract here.
#include "client/cli/views.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "client/cli/json.h"
#include "client/cli/names.h"
#include "tests/cli/samples.h"
#include "wire/identity.h"

namespace prefixd::cli {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSpaceTable[] =
    "space         model       block  formats              blocks  tokens  ends       ram"
    "  ssd unpacked  ram only\n"
    "3f0000000000  Qwen3-0.6B     64  mlx_affine/8/64/f16      10     447     4  26.7 MiB"
    "      13.0 MiB  13.0 MiB\n";

std::string Status(const v1::GetStatsReply& stats) {
  return StatusView({.address = "unix:///run/p.sock", .health = "serving", .stats = stats});
}

TEST(StatusViewTest, IsOneScreen) {
  EXPECT_EQ(Status(SampleStats()),
            std::string(R"(prefixd 0.1.0 at unix:///run/p.sock: serving, up 3 h 12 min

ram  [########------------]  42.2 %  108.0 MiB of 256.0 MiB  arena 104.0 MiB, index 4.0 MiB
ssd  [##------------------]   9.8 %  100.0 MiB of 1.0 GiB    13.0 MiB in RAM only
ram  200.0 MiB of the budget are for pages; the rest: index 16.0 MiB, staging 40.0 MiB
arena  shared: workers on this host read in place; 1,024 pages adopted from the prefixd before

survives       stop                      kill -9                   reboot, power cut
pages in ram   yes, in the arena's file  yes, in the arena's file  what is on ssd too, all but 13.0 MiB
pages on ssd   yes                       yes                       yes
pins, budgets  no                        no                        no

2 sessions, 1 lease of 13.0 MiB, 0 reservations

tokens since start
  requested   12,345          asked for by workers
  matched     10,000  81.0 %  known prefix
  restorable   9,999  81.0 %  with all their bytes
  delivered    9,998  81.0 %  copied to workers; the others were read in place
  used         9,990  80.9 %  not computed again
saved 9,990 tokens of prefill, 12.4 s

)") + kSpaceTable);
}

TEST(StatusViewTest, OfAFreshDaemonHasNoHitRate) {
  v1::GetStatsReply stats;
  stats.set_version("0.1.0");
  stats.set_ram_budget_bytes(uint64_t{1} << 30);
  const std::string text = Status(stats);
  EXPECT_THAT(text, HasSubstr("ssd  off: what is cached is lost at a reboot\n"));
  EXPECT_THAT(text, HasSubstr("  matched     0  -  known prefix\n"));
  EXPECT_THAT(text, HasSubstr("no spaces yet: no worker has opened one\n"));
}

TEST(StatusViewTest, OneTableSaysWhatSurvivesWhat) {
  v1::GetStatsReply stats = SampleStats();
  stats.set_ssd_budget_bytes(0);
  EXPECT_THAT(Status(stats), HasSubstr("pages in ram   yes, in the arena's file  "
                                       "yes, in the arena's file  nothing\n"));
  EXPECT_THAT(Status(stats), Not(HasSubstr("pages on ssd")));
  stats.mutable_arena()->set_shared(false);
  EXPECT_THAT(Status(stats), HasSubstr("pages in ram   nothing  nothing  nothing\n"));
  stats.set_ssd_budget_bytes(1 << 30);
  EXPECT_THAT(Status(stats), HasSubstr("pages in ram   yes, saved to ssd  "
                                       "what is on ssd too, all but 13.0 MiB  "
                                       "what is on ssd too, all but 13.0 MiB\n"));
}

TEST(StatusViewTest, NothingDeliveredAfterAHitIsSaidToBeReadInPlace) {
  v1::GetStatsReply stats = SampleStats();
  for (v1::Count& counter : *stats.mutable_counters()) {
    if (counter.name() == "tokens.delivered") counter.set_value(0);
  }
  EXPECT_THAT(Status(stats), HasSubstr("copied to workers; the others were read in place\n"));
  stats.mutable_arena()->set_shared(false);
  EXPECT_THAT(Status(stats), Not(HasSubstr("in place")));
}

TEST(StatusViewTest, ALimitedArenaStandsOut) {
  v1::GetStatsReply stats = SampleStats();
  EXPECT_THAT(Status(stats), Not(HasSubstr("limited")));
  stats.mutable_arena()->set_limited_to(60 << 20);
  EXPECT_THAT(Status(stats),
              HasSubstr("arena limited by /dev/shm: 60.0 MiB; give that tmpfs room"));
}

TEST(StatusViewTest, MemoryThatIsPinnedForGpusIsTold) {
  v1::GetStatsReply stats = SampleStats();
  const auto count = [&](const char* name, uint64_t mib) {
    v1::Count* counter = stats.add_counters();
    counter->set_name(name);
    counter->set_value(mib << 20);
  };
  EXPECT_THAT(Status(stats), Not(HasSubstr("gpus")));
  count("arena.device_pinned_bytes", 5 << 10);
  EXPECT_THAT(Status(stats), HasSubstr("gpus   5.0 GiB of the arena are pinned by workers\n"));
  count("arena.device_awaited_bytes", 60);
  count("arena.device_kept_bytes", 120);
  EXPECT_THAT(Status(stats),
              HasSubstr("gpus   5.0 GiB of the arena are pinned by workers; 60.0 MiB of it were "
                        "asked back, and count as used until they are unpinned; 120.0 MiB of it "
                        "were not unpinned in time, and are beside the budget: prefixd's log names "
                        "the workers\n"));
}

TEST(StatusViewTest, APrivateArenaIsTold) {
  v1::GetStatsReply stats = SampleStats();
  stats.mutable_arena()->set_shared(false);
  EXPECT_THAT(Status(stats), HasSubstr("arena  private: pages travel by Fetch and Put"));
}

TEST(StatusViewTest, ACallerOfOneTenantIsToldItsSpacesAndNothingThatIsNotKnown) {
  v1::GetStatsReply stats;  // what a prefixd with an access file tells it
  stats.set_version("0.1.0");
  *stats.mutable_spaces() = SampleStats().spaces();
  EXPECT_EQ(Status(stats),
            std::string("prefixd 0.1.0 at unix:///run/p.sock: serving\n\n"
                        "budgets, sessions and tokens of this prefixd are not told to a caller of "
                        "one tenant; the tenant's spaces:\n\n") +
                kSpaceTable);
  stats.clear_spaces();
  EXPECT_THAT(Status(stats), EndsWith("no spaces yet: no worker has opened one\n"));
  EXPECT_EQ(StatsView(stats),
            "the sums of this prefixd are not told to a caller of one tenant: see prefixctl "
            "spaces\n");
}

TEST(StatusViewTest, AFailingDiskStandsOut) {
  v1::GetStatsReply stats = SampleStats();
  EXPECT_THAT(Status(stats), Not(HasSubstr("WRITES FAIL")));
  AddCount("ssd.failing", 1, stats.mutable_counters());
  EXPECT_THAT(Status(stats), HasSubstr("ssd  WRITES FAIL: the disk is full or broken"));
}

TEST(StatusViewTest, T6ATierThatIsClosedAClearThatWaitsAndDamagedCopiesStandOut) {
  v1::GetStatsReply stats = SampleStats();
  for (const char* const name : {"ssd.closed", "ssd.border_waits", "ssd.damaged_copies"}) {
    AddCount(name, 1, stats.mutable_counters());
  }
  AddCount("ssd.damaged_bytes", 3 << 20, stats.mutable_counters());
  EXPECT_THAT(Status(stats), HasSubstr("ssd  CLOSED: its disk takes nothing now"));
  EXPECT_THAT(Status(stats), HasSubstr("ssd  A CLEAR WAITS for the disk"));
  EXPECT_THAT(Status(stats), HasSubstr("ssd  1 damaged store moved aside, 3.0 MiB until"));
}

TEST(StatusViewTest, AStoreThatIsNotMountedStandsOut) {
  v1::GetStatsReply stats = SampleStats();
  stats.set_ssd_budget_bytes(0);
  EXPECT_THAT(Status(stats), HasSubstr("ssd  off"));
  AddCount("ssd.store_missing", 1, stats.mutable_counters());
  EXPECT_THAT(Status(stats), HasSubstr("ssd  MISSING: the directory does not hold the store"));
}

TEST(StatusViewTest, ModelsThatAreNotSharedStandOut) {
  v1::GetStatsReply stats = SampleStats();
  AddCount("spaces.refused", 0, stats.mutable_counters());
  EXPECT_THAT(Status(stats), Not(HasSubstr("not shared")));
  stats.mutable_counters()->rbegin()->set_value(1);
  EXPECT_THAT(Status(stats), HasSubstr("0 reservations\n"
                                       "not shared   1 model: see prefixctl sessions\n\n"));
  stats.mutable_counters()->rbegin()->set_value(2);
  EXPECT_THAT(Status(stats), HasSubstr("not shared   2 models: see prefixctl sessions\n"));
}

TEST(StatusViewTest, LostTimeIsShownAsLost) {
  v1::GetStatsReply stats = SampleStats();
  stats.set_seconds_saved(-2.5);
  EXPECT_THAT(Status(stats), HasSubstr("of prefill, -2.5 s\n"));
}

TEST(StatsViewTest, ShowsEveryCounterAndLatency) {
  EXPECT_EQ(StatsView(SampleStats()), R"(now
  uptime_s                    11,520
  ram.budget_bytes       268,435,456
  ram.arena_bytes        109,051,904
  ram.index_bytes          4,194,304
  ram.in_flight_bytes              0
  ssd.budget_bytes     1,073,741,824
  ssd.file_bytes         104,857,600
  dirty_bytes             13,603,328
  sessions                         2
  leases                           1
  leased_bytes            13,631,488
  reservations                     0
  pins                             2
  pinned_bytes             3,145,728
  spaces                           1
  saved                       12.4 s

counters since start
  match.exact             3
  tokens.delivered    9,998
  tokens.matched     10,000
  tokens.requested   12,345
  tokens.restorable   9,999
  tokens.used         9,990

latency      count   mean    p50     p90     p99
rpc.acquire      4  96 us  96 us  122 us  127 us
(percentiles come from power-of-two buckets: within a factor of two)
)");
}

TEST(StatsViewTest, QuantilesStayInsideTheBucketThatHoldsThem) {
  v1::Latency latency;
  EXPECT_EQ(QuantileMicros(latency, 0.5), 0);
  for (const uint32_t bucket : {50u, 0u, 0u, 49u, 0u, 0u, 0u, 0u, 0u, 0u, 1u})
    latency.add_buckets(bucket);
  EXPECT_EQ(QuantileMicros(latency, 0.5), 2);    // [0, 2): the first 50 end there
  EXPECT_EQ(QuantileMicros(latency, 0.99), 16);  // [8, 16)
  EXPECT_EQ(QuantileMicros(latency, 1), 2'048);  // [1024, 2048)
  EXPECT_GT(QuantileMicros(latency, 0.995), 1'024);
}

TEST(SpacesViewTest, IsOneLineASpace) {
  v1::ListSpacesReply reply;
  EXPECT_EQ(SpacesView(reply), "no spaces yet: no worker has opened one\n");
  *reply.add_spaces() = SampleSpace(0x3f);
  EXPECT_EQ(SpacesView(reply), kSpaceTable);
}

// S1-35
TEST(SpacesViewTest, SaysHowMuchSmallerEachFormatIsThanTheDataItWasMadeOf) {
  block::SpaceIdentity identity;
  identity.model = "Qwen3-0.6B";
  identity.block_tokens = 64;
  block::LayerGroup group;
  group.name = "full.0";
  group.layers = {0, 1};
  group.kv_heads = 8;
  group.key_dim = group.value_dim = 128;
  for (const uint8_t bits : {uint8_t{8}, uint8_t{4}}) {
    const quant::TensorFormat format = quant::MlxAffineFormat(bits, 64, quant::Dtype::kF16);
    group.ladder.push_back({format, format});
  }
  identity.groups = {group};
  v1::ListSpacesReply reply;
  v1::ListSpacesReply::Space* const space = reply.add_spaces();
  *space = SampleSpace(0x3f);
  *space->mutable_identity() = wire::ToProto(identity);
  const nlohmann::json ratios =
      nlohmann::json::parse(SpacesJson(reply))["spaces"][0]["compression_ratio"];
  ASSERT_EQ(ratios.size(), 2u);
  EXPECT_NEAR(ratios["mlx_affine/8/64/f16"].get<double>(), 1.882, 0.001);
  EXPECT_NEAR(ratios["mlx_affine/4/64/f16"].get<double>(), 3.556, 0.001);
  const std::string text = ExplainView(reply, SampleId(0x3f));
  EXPECT_THAT(text, HasSubstr("compression   1.88 of raw elements: mlx_affine/8/64/f16\n"));
  EXPECT_THAT(text, HasSubstr("compression   3.56 of raw elements: mlx_affine/4/64/f16\n"));
}

TEST(SpacesViewTest, ExplainSaysInWhichFieldsOtherSpacesDifferThoseOfFewestFirst) {
  v1::ListSpacesReply reply;
  *reply.add_spaces() = SampleSpace(0x3f);
  *reply.add_spaces() = SampleSpace(0x40);
  reply.mutable_spaces(1)->add_differing_fields("rope.theta");
  reply.mutable_spaces(1)->add_differing_fields("layer 0, format 0, key.bits");
  *reply.add_spaces() = SampleSpace(0x41);
  reply.mutable_spaces(2)->add_differing_fields("rope.theta");
  EXPECT_EQ(ExplainView(reply, SampleId(0x3f)), "space 3f" + std::string(62, '0') + R"(
  model         Qwen3-0.6B
  weights       ab)" + std::string(62, '0') + R"(
  adapter       none
  tokenizer     none
  role          target
  rope          theta 1e+06, 128 dims, halves
  parallel      tensor 1, pipeline 1
  tenant        local
  block_tokens  64
  formats       mlx_affine/8/64/f16
  group         full.0: full, layers 0-2, 5, 7-8, 8 kv heads, key 128, value 128

other spaces differ from it in
  410000000000 (Qwen3-0.6B): rope.theta
  400000000000 (Qwen3-0.6B): rope.theta; layer 0, format 0, key.bits
)");
  reply.mutable_spaces()->DeleteSubrange(1, 2);
  EXPECT_THAT(ExplainView(reply, SampleId(0x3f)), HasSubstr("no other space to compare with"));
}

TEST(SpacesViewTest, R1ExplainSaysInWhichFieldsSpacesOfOtherHostsDiffer) {
  v1::ListSpacesReply reply;
  *reply.add_spaces() = SampleSpace(0x3f);
  v1::ListSpacesReply::ToldSpace* told = reply.add_other_hosts();
  told->set_space_id(SampleId(0x41));
  told->mutable_identity()->set_model("Qwen3\x1b");
  told->set_host("gpu-7");
  told->set_age_s(240);
  told->add_differing_fields("rope.theta");
  told->add_differing_fields("block_tokens");
  EXPECT_THAT(
      ExplainView(reply, SampleId(0x3f)),
      EndsWith("\nspaces that only other hosts have differ from it in\n"
               "  410000000000 (Qwen3?, on gpu-7 4 min 0 s ago): rope.theta; block_tokens\n"));
  reply.clear_other_hosts();
  reply.set_other_hosts_error("remote: no server answers");
  EXPECT_THAT(ExplainView(reply, SampleId(0x3f)),
              EndsWith("\nwhat other hosts have is not known: remote: no server answers\n"));
}

TEST(MatchViewTest, SaysWhatEndedItAndWhatShortenedIt) {
  const v1::ListSpacesReply::Space space = SampleSpace(0x3f);
  v1::Answer answer;
  answer.set_matched_tokens(1'777);
  answer.set_restorable_tokens(1'700);
  answer.set_kind(v1::MATCH_KIND_LCP);
  answer.set_match_ended_by(v1::END_REASON_DIVERGED);
  answer.set_diverged_sequences(2);
  v1::Shortening* by = answer.add_shortened_by();
  by->set_group(0);
  by->set_reason(v1::SHORTEN_REASON_EVICTED);
  by->set_tokens_lost(76);
  by = answer.add_shortened_by();
  by->set_all_groups(true);
  by->set_reason(v1::SHORTEN_REASON_MAX_TOKENS);
  by->set_tokens_lost(1);
  answer.set_ram_bytes(uint64_t{5} << 20);
  answer.set_load_us(4'100);
  EXPECT_EQ(MatchView({.space = space, .requested_tokens = 3'000, .answer = answer}),
            R"(space         3f0000000000 (Qwen3-0.6B)
requested     3,000 tokens
matched       1,777 (59.2 %), lcp
restorable    1,700
ended by      diverged at token 1,777: 2 stored sequences go on otherwise
shortened by  evicted, 76 tokens lost, group full.0; max_tokens, 1 token lost
bytes         5.0 MiB in ram, 0 B on ssd
load          about 4.1 ms
)");
}

TEST(MatchViewTest, NamesEveryReasonToEnd) {
  const v1::ListSpacesReply::Space space = SampleSpace(0x3f);
  v1::Answer answer;
  answer.set_matched_tokens(64);
  answer.set_pending_tokens(128);
  const auto text = [&](v1::EndReason reason) {
    answer.set_match_ended_by(reason);
    return MatchView({.space = space, .requested_tokens = 100, .answer = answer});
  };
  EXPECT_THAT(text(v1::END_REASON_REQUEST_ENDED), HasSubstr("the request's own end"));
  EXPECT_THAT(text(v1::END_REASON_EVICTED), HasSubstr("evicted at token 64"));
  EXPECT_THAT(text(v1::END_REASON_NEVER_STORED), HasSubstr("never stored at token 64"));
  EXPECT_THAT(text(v1::END_REASON_INDEX_LOADING), HasSubstr("ask again"));
  EXPECT_THAT(text(static_cast<v1::EndReason>(17)), HasSubstr("unknown (17) at token 64"));
  EXPECT_THAT(text(v1::END_REASON_EVICTED), HasSubstr("128 more, being computed"));
  answer.set_diverged_sequences(1'000);
  EXPECT_THAT(text(v1::END_REASON_DIVERGED), HasSubstr("at least 1,000 stored sequences go on"));
}

// A worker whose connection is gone and whose process is not: it hangs, and holds.
TEST(SessionsViewTest, AHungWorkerIsVisible) {
  EXPECT_EQ(
      SessionsView(SampleSessions()),
      R"(session           worker    slot    pid  state            age  leases   leased  reservations   staging
5f3a000000000000  worker-0     0  41872  attached  3 min 10 s       2  2.0 MiB             1  64.0 MiB
5f4a000000000000  worker-1     1  41873  cut off   2 min 10 s       1  1.0 MiB             0       0 B
5f5a000000000000  worker-2     -      -  attached  1 min 10 s       0      0 B             0       0 B
cut off: the connection is gone, but the process lives and may be reading: it keeps what it holds until it ends
)");
  v1::ListSessionsReply well = SampleSessions();
  well.mutable_sessions(1)->set_attached(true);
  EXPECT_THAT(SessionsView(well), Not(HasSubstr("cut off")));
  EXPECT_EQ(SessionsView({}), "no sessions: no worker is attached\n");
}

TEST(SessionsViewTest, AModelThatIsNotSharedStandsUnderItsSession) {
  v1::ListSessionsReply reply = SampleSessions();
  v1::ListSessionsReply::NotShared* note = reply.mutable_sessions(0)->add_not_shared();
  note->set_model("gemma-3");
  note->set_reason("group_size 48 does not divide head_dim 128");
  note = reply.mutable_sessions(0)->add_not_shared();
  note->set_model("m\x1b[31m");
  note->set_reason("two\nlines");
  const std::string text = SessionsView(reply);
  EXPECT_THAT(text, HasSubstr("64.0 MiB\n"
                              "  not shared: gemma-3: group_size 48 does not divide head_dim 128\n"
                              "  not shared: m?[31m: two?lines\n"
                              "5f4a000000000000  worker-1 "));
  const nlohmann::json json = nlohmann::json::parse(ReplyJson(reply))["sessions"];
  EXPECT_EQ(json[0]["not_shared"][0]["model"], "gemma-3");
  EXPECT_EQ(json[0]["not_shared"][1]["reason"], "two\nlines");
  EXPECT_EQ(json[1]["not_shared"], nlohmann::json::array());
}

TEST(SessionsViewTest, WhatASessionHasPinnedForGpusStandsUnderIt) {
  v1::ListSessionsReply reply = SampleSessions();
  reply.mutable_sessions(0)->set_device_pinned_bytes(uint64_t{3} << 30);
  EXPECT_THAT(SessionsView(reply), HasSubstr("64.0 MiB\n"
                                             "  has 3.0 GiB of the arena pinned for GPUs\n"
                                             "5f4a000000000000  worker-1 "));
}

TEST(BudgetViewTest, MemoryThatWorkersAreToUnpinIsTold) {
  v1::SetBudgetsReply reply;
  reply.set_ram_budget_bytes(uint64_t{2} << 30);
  reply.set_ram_used_bytes(uint64_t{3} << 30);
  reply.set_ram_over_bytes(uint64_t{1} << 30);
  reply.set_awaited_bytes(uint64_t{60} << 20);
  EXPECT_EQ(BudgetView(reply),
            "ram  3.0 GiB of 2.0 GiB, 1.0 GiB are given back as leases and pins end, of these 60.0 "
            "MiB as workers unpin them from GPUs\nssd  none\n");
}

TEST(LeasesViewTest, IsOneLineALease) {
  EXPECT_EQ(LeasesView(SampleLeases()),
            R"(lease             session           space         tokens  pages      size  age
0000000000000011  5f3a000000000000  3f0000000000   2,048    448  13.0 MiB  4 s
)");
  EXPECT_EQ(LeasesView({}), "no leases: nobody is reading\n");
}

TEST(RepliesViewTest, AnEndedSessionSaysWhetherItsProcessStillHolds) {
  v1::EndSessionReply reply;
  EXPECT_EQ(EndSessionView(reply), "ended: what it held is free\n");
  reply.set_still_held(true);
  reply.set_pid(7);
  EXPECT_THAT(EndSessionView(reply), HasSubstr("process 7 lives and may be reading"));
}

TEST(NamesTest, AreThoseOfTheCounters) {
  EXPECT_EQ(NameOf(v1::MATCH_KIND_SUPERSEQUENCE), "supersequence");
  EXPECT_EQ(NameOf(v1::SHORTEN_REASON_SLOWER_THAN_PREFILL), "slower_than_prefill");
  EXPECT_EQ(NameOf(v1::LAYER_KIND_SLIDING), "sliding");
  EXPECT_EQ(NameOf(static_cast<v1::MatchKind>(99)), "unknown (99)");
}

TEST(RepliesViewTest, AVerifyIsASentence) {
  v1::VerifyReply sum;
  sum.set_pages(1'000);
  sum.set_bytes(uint64_t{1} << 30);
  EXPECT_EQ(VerifyView(sum), "verified 1,000 pages, 1.0 GiB: all are as they were stored\n");
  sum.set_in_use(3);
  EXPECT_EQ(VerifyView(sum),
            "verified 1,000 pages, 1.0 GiB (3 in use passed over): all are as they were stored\n");
  sum.set_bad(2);
  sum.set_unreadable(1);
  EXPECT_THAT(VerifyView(sum), HasSubstr("2 bad and dropped, 1 that the disk did not give"));
}

TEST(RepliesViewTest, ClearAndFlushAreSentences) {
  v1::ClearReply cleared;
  cleared.set_spaces(1);
  cleared.set_bytes(uint64_t{3} << 20);
  EXPECT_EQ(ClearView(cleared), "cleared 1 space, 3.0 MiB of pages\n");
  cleared.set_border_waits(true);
  EXPECT_THAT(ClearView(cleared), HasSubstr("pages\nthe SSD tier's disk has not taken this yet"));
  cleared.set_border_waits(false);
  v1::FlushReply flushed;
  flushed.set_flushed_bytes(uint64_t{3} << 20);
  EXPECT_EQ(FlushView(flushed), "wrote 3.0 MiB to the ssd, everything is safe\n");
  flushed.set_dirty_bytes(1'024);
  EXPECT_THAT(FlushView(flushed), AllOf(HasSubstr("1.0 KiB are in RAM only"),
                                        HasSubstr("more than the SSD budget has room for")));
}

TEST(RepliesViewTest, ConfigSaysWhereEachSettingComesFrom) {
  v1::GetConfigReply config;
  config.set_version("0.1.0");
  v1::GetConfigReply::Setting* setting = config.add_settings();
  setting->set_name("ram");
  setting->set_value("256MiB");
  setting->set_source("flag");
  setting = config.add_limits();
  setting->set_name("items_per_request");
  setting->set_value("64");
  setting->set_source("default");
  EXPECT_EQ(ConfigView(config), R"(prefixd 0.1.0

name  value   from
ram   256MiB  flag

limits of the wire
name               value  from
items_per_request  64     default
)");
}

TEST(ViewsTest, PinsOnePerLine) {
  EXPECT_EQ(PinsView({}), "no pins\n");
  EXPECT_EQ(
      PinsView(SamplePins()),
      R"(pin               space         worker     tokens  pages      size        age        left
5f3a000000000012  3f0000000000  prefixctl   1,777    112  13.0 MiB  4 min 0 s  56 min 0 s
5f3a000000000013  3f0000000000  prefixctl   1,777    112  13.0 MiB  4 min 0 s           -
)");
}

TEST(ViewsTest, PrefixesAreATreeOfTokens) {
  v1::ListPrefixesReply reply = SamplePrefixes();
  reply.set_gone(3);
  EXPECT_EQ(PrefixesView(reply),
            "prefix            space         requests  last read       ram       ssd\n"
            "0 to 1,024        3f0000000000       312        4 s  12.0 MiB  12.0 MiB\n"
            "  1,024 to 9,792  3f0000000000        20        4 s  12.0 MiB       0 B\n"
            "of the last 332 requests that read the cache; 3 more read what is gone\n");
  EXPECT_EQ(PrefixesView({}), "no request has read a whole block of the cache yet\n");
}

TEST(ViewsTest, WhyIsASentenceEach) {
  EXPECT_EQ(WhyView(SampleWhy()),
            "chat-17 (worker-0, 4 s ago): 41 of 3,000 tokens in space 3f0000000000, diverged at "
            "token 41: 312 stored sequences go on otherwise\n"
            "acquire-9 (w?[31m, 1 min 1 s ago): 64 of 128 tokens, the request's own end; no room "
            "in RAM to load into (ram_full) took 64 tokens; another worker was computing 10; 2.9 "
            "MiB came from other hosts, "
            "asked other hosts for 2.0 ms, made room in 2.5 s\n");
  v1::WhyReply none;
  none.set_remembered(12);
  EXPECT_EQ(WhyView(none), "none of the 12 answers that prefixd remembers is such a one\n");
}

TEST(ViewsTest, WhyCallsALimitThatTheWorkerSetItsOwn) {
  v1::WhyReply reply = SampleWhy();
  v1::Shortening& by = *reply.mutable_answers(1)->mutable_shortened_by(0);
  by.set_reason(v1::SHORTEN_REASON_MAX_TOKENS);
  by.set_tokens_lost(1);
  EXPECT_THAT(WhyView(reply), HasSubstr("; the worker's own limit (max_tokens) took 1 token;"));
}

// The documentation explains a reason by the name that stands in brackets.
TEST(ViewsTest, WhySaysEveryReasonInWordsAndByItsName) {
  v1::WhyReply reply = SampleWhy();
  v1::Shortening& by = *reply.mutable_answers(1)->mutable_shortened_by(0);
  for (int number = v1::SHORTEN_REASON_EVICTED; v1::ShortenReason_IsValid(number); ++number) {
    by.set_reason(static_cast<v1::ShortenReason>(number));
    EXPECT_THAT(WhyView(reply), HasSubstr(" (" + NameOf(by.reason()) + ") took "));
  }
}

TEST(ViewsTest, WhyOfAMissFromTheFirstTokenSaysHowToFindTheSpaceThatHasIt) {
  v1::WhyReply reply = SampleWhy();
  EXPECT_THAT(WhyView(reply), Not(HasSubstr("--explain")));
  v1::PastAnswer* const missed = reply.mutable_answers(0);
  missed->set_match_ended_by(v1::END_REASON_NEVER_STORED);
  EXPECT_THAT(WhyView(reply), Not(HasSubstr("--explain")));  // 41 tokens were there
  missed->set_matched_tokens(0);
  EXPECT_THAT(WhyView(reply), EndsWith("`prefixctl spaces --explain 3f0000000000` says in which "
                                       "fields the others differ\n"));
}

}  // namespace
}  // namespace prefixd::cli
