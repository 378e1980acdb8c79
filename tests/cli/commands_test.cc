// Command lines in, text and exit code out, against a daemon that remembers what it was asked.
#include "client/cli/commands.h"

#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "client/cli/names.h"
#include "tests/cli/fake_daemon.h"
#include "wire/admin.h"

namespace prefixd::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Ran {
  int exit_code = 0;
  std::string out, err;
};

class CommandsTest : public ::testing::Test {
 protected:
  // Answers `typed` where prefixctl asks; "" = nobody is there to ask.
  Ran Run(std::vector<std::string> arguments, const std::string& typed = "") {
    std::istringstream in(typed);
    std::ostringstream out, err;
    const Surroundings surroundings{.environment = {{"PREFIXD_SERVER", daemon_.address()}},
                                    .exists = [](const std::string&) { return false; }};
    const int code = RunPrefixctl(arguments, surroundings,
                                  {.in = in, .out = out, .err = err, .can_ask = !typed.empty()});
    return {code, out.str(), err.str()};
  }
  FakeDaemon daemon_;
};

TEST_F(CommandsTest, StatusShowsHealthAndStats) {
  const Ran ran = Run({"status"});
  EXPECT_EQ(ran.exit_code, kExitOk) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("prefixd 0.1.0 at " + daemon_.address() + ": serving, up 3 h"));
  daemon_.SetServing("prefixd.v1.PrefixCache", false);
  EXPECT_THAT(Run({"status"}).out, HasSubstr(": loading its index, up 3 h"));
  daemon_.SetServing(false);
  EXPECT_THAT(Run({"status"}).out, HasSubstr(": draining, up 3 h"));
}

TEST_F(CommandsTest, StatusAsJsonHasTheSameNumbers) {
  const Ran ran = Run({"status", "--json"});
  const auto json = nlohmann::json::parse(ran.out);
  EXPECT_EQ(json["health"], "serving");
  EXPECT_EQ(json["counters"]["tokens.requested"], 12'345);
  EXPECT_EQ(json["ram_parts"]["arena"], uint64_t{104} << 20);
  EXPECT_EQ(json["spaces"][0]["space_id"], "3f" + std::string(62, '0'));
  EXPECT_EQ(json["latencies"]["rpc.acquire"]["p50_us"], 96);
  EXPECT_DOUBLE_EQ(json["seconds_saved"], 12.44);
}

TEST_F(CommandsTest, EveryCommandSpeaksJsonOnOneLine) {
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"status"},
                                             {"stats"},
                                             {"spaces"},
                                             {"match", "--space", "3f", "--text", "abc"},
                                             {"clear", "--all", "--yes"},
                                             {"sessions"},
                                             {"sessions", "--end", "5f3a"},
                                             {"leases"},
                                             {"pin", "--space", "3f", "--text", "abc"},
                                             {"unpin", "--pin", "12"},
                                             {"pins"},
                                             {"why", "chat-17"},
                                             {"prefixes"},
                                             {"budget", "--ram", "2GiB"},
                                             {"spaces", "--set", "3f", "--ttl", "1h"},
                                             {"flush"},
                                             {"config"}}) {
    std::vector<std::string> arguments = {"--json"};
    arguments.insert(arguments.end(), command.begin(), command.end());
    const Ran ran = Run(arguments);
    EXPECT_EQ(ran.exit_code, kExitOk) << command[0] << ran.err;
    EXPECT_TRUE(nlohmann::json::parse(ran.out, nullptr, false).is_object()) << ran.out;
    EXPECT_EQ(std::count(ran.out.begin(), ran.out.end(), '\n'), 1) << command[0];
  }
}

TEST_F(CommandsTest, MatchReopensTheSpaceAndSendsTheTokens) {
  const Ran ran = Run({"match", "--space", "3f", "--tokens", "1,2,300000"});
  EXPECT_EQ(ran.exit_code, kExitOk) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("matched       3 (100.0 %), exact"));
  EXPECT_EQ(daemon_.opened.weights_digest(), SampleId(0xab));
  ASSERT_EQ(daemon_.matched.items_size(), 1);
  EXPECT_EQ(daemon_.matched.session(), FakeDaemon::kSession);
  EXPECT_EQ(daemon_.matched.items(0).sequence().space(), FakeDaemon::kSpace);
  EXPECT_THAT(daemon_.matched.items(0).sequence().tokens(), ElementsAre(1, 2, 300000));
}

// T5: prefixd shows no salts, so whoever asks about a salted space's prompts brings its salt.
TEST_F(CommandsTest, ASaltedSpaceIsOpenedByWhoKnowsItsSalt) {
  daemon_.spaces.mutable_spaces(0)->set_salt_digest(wire::SaltDigest("alice"));
  for (const char* command : {"match", "prefetch", "pin", "unpin"}) {
    const Ran bare = Run({command, "--space", "3f", "--tokens", "1"});
    EXPECT_EQ(bare.exit_code, kExitRefused) << command;
    EXPECT_THAT(bare.err, HasSubstr("give it by --salt or $PREFIXD_SALT")) << command;
    EXPECT_THAT(Run({command, "--salt", "bob", "--space", "3f", "--tokens", "1"}).err,
                HasSubstr("is another"))
        << command;
  }
  EXPECT_EQ(daemon_.opened.model(), "") << "nothing was opened";
  EXPECT_EQ(Run({"match", "--salt", "alice", "--space", "3f", "--tokens", "1"}).exit_code, kExitOk);
  EXPECT_EQ(daemon_.opened.salt(), "alice");
  const Ran spaces = Run({"--json", "spaces"});
  EXPECT_THAT(spaces.out,
              HasSubstr("\"salt_digest\":\"" + HexId(wire::SaltDigest("alice")) + "\""));
}

// T5
TEST_F(CommandsTest, AFileOfATokenThatIsNotThereIsNamed) {
  const Ran ran = Run({"--server", "127.0.0.1:1", "--token-file", "/nonexistent/token", "status"});
  EXPECT_EQ(ran.exit_code, kExitRefused);
  EXPECT_THAT(ran.err, HasSubstr("/nonexistent/token is not there"));
}

// T5: who may not use the admin socket is told so, and by whom.
TEST_F(CommandsTest, WithoutTheAdminSocketStatusSaysWhatIsHidden) {
  daemon_.hides_spaces = true;
  EXPECT_THAT(Run({"status"}).out, HasSubstr("spaces: shown on the admin socket only"));
  daemon_.refusal = {grpc::StatusCode::PERMISSION_DENIED, "clear: served on the admin socket only"};
  const Ran ran = Run({"clear", "--all", "--yes"});
  EXPECT_EQ(ran.exit_code, kExitRefused);
  EXPECT_THAT(ran.err, HasSubstr("clear: served on the admin socket only"));
}

TEST_F(CommandsTest, MatchTakesBytesAsTokens) {
  ASSERT_EQ(Run({"match", "--space", "3f", "--text", "a\xff"}).exit_code, kExitOk);
  EXPECT_THAT(daemon_.matched.items(0).sequence().tokens(), ElementsAre('a', 255));
  const std::string path = ::testing::TempDir() + "/prompt.txt";
  std::ofstream(path, std::ios::binary) << std::string("\0b\n", 3);
  ASSERT_EQ(Run({"match", "--space", "3f", "--file", path}).exit_code, kExitOk);
  EXPECT_THAT(daemon_.matched.items(0).sequence().tokens(), ElementsAre(0, 'b', '\n'));
}

TEST_F(CommandsTest, MatchThatFindsNothingHasItsOwnExitCode) {
  daemon_.answer.Clear();
  daemon_.answer.set_kind(v1::MATCH_KIND_NONE);
  daemon_.answer.set_match_ended_by(v1::END_REASON_NEVER_STORED);
  const Ran ran = Run({"match", "--space", "3f", "--tokens", "1"});
  EXPECT_EQ(ran.exit_code, kExitNothing);
  EXPECT_THAT(ran.out, HasSubstr("nothing that is stored in this space begins like it"));
}

TEST_F(CommandsTest, MatchInAnotherTenantsSpaceIsRefused) {
  daemon_.opens_as = SampleId(0x77);
  const Ran ran = Run({"match", "--space", "3f", "--tokens", "1"});
  EXPECT_EQ(ran.exit_code, kExitRefused);
  EXPECT_THAT(ran.err, HasSubstr("belongs to tenant local"));
}

TEST_F(CommandsTest, PinSendsPromptAndTimeAndSaysWhatIsKept) {
  const Ran ran = Run({"pin", "--space", "3f", "--text", "abc", "--ttl", "1h"});
  EXPECT_EQ(ran.exit_code, kExitOk) << ran.err;
  EXPECT_EQ(ran.out,
            "pin 5f3a000000000012 keeps 2 of 3 tokens, 13.0 MiB, for 1 h 0 min\n"
            "the rest: diverged at token 2: 312 stored sequences go on otherwise\n");
  EXPECT_EQ(daemon_.pinning.session(), FakeDaemon::kSession);
  EXPECT_EQ(daemon_.pinning.ttl_ms(), 3'600'000u);
  EXPECT_THAT(daemon_.pinning.sequence().tokens(), ElementsAre('a', 'b', 'c'));
  EXPECT_THAT(Run({"pin", "--space", "3f", "--text", "abc"}).out, HasSubstr("until unpin"));
  EXPECT_EQ(daemon_.pinning.ttl_ms(), 0u);
}

TEST_F(CommandsTest, APinOfNothingHasItsOwnExitCode) {
  daemon_.pinned.Clear();
  daemon_.pinned.mutable_answer()->set_match_ended_by(v1::END_REASON_NEVER_STORED);
  const Ran ran = Run({"pin", "--space", "3f", "--tokens", "1"});
  EXPECT_EQ(ran.exit_code, kExitNothing);
  EXPECT_EQ(ran.out, "nothing is pinned: nothing that is stored in this space begins like it\n");
}

TEST_F(CommandsTest, UnpinTakesAPinOrItsPrompt) {
  EXPECT_THAT(Run({"unpin", "--pin", "5f3a000000000012"}).out, HasSubstr("unpinned: 13.0 MiB"));
  EXPECT_EQ(daemon_.unpinned.pin(), 0x5f3a000000000012u);
  ASSERT_EQ(Run({"unpin", "--space", "3f", "--tokens", "1,2"}).exit_code, kExitOk);
  EXPECT_EQ(daemon_.unpinned.pin(), 0u);
  EXPECT_THAT(daemon_.unpinned.sequence().tokens(), ElementsAre(1, 2));
  EXPECT_EQ(Run({"unpin", "--tokens", "1,2"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"unpin", "--pin", "xyz"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"unpin"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"pin", "--space", "3f", "--tokens", "1", "--ttl", "soon"}).exit_code, kExitUsage);
}

TEST_F(CommandsTest, BudgetSendsSizesAndSaysWhatIsStillToBeGivenBack) {
  const Ran ran = Run({"budget", "--ram", "2GiB", "--ssd", "20GiB"});
  EXPECT_EQ(ran.exit_code, kExitOk) << ran.err;
  EXPECT_EQ(daemon_.budgets.ram_bytes(), uint64_t{2} << 30);
  EXPECT_EQ(daemon_.budgets.ssd_bytes(), uint64_t{20} << 30);
  EXPECT_EQ(ran.out,
            "ram  3.0 GiB of 2.0 GiB, 1.0 GiB are given back as leases and pins end\n"
            "ssd  0 B of 20.0 GiB\n");
  ASSERT_EQ(Run({"budget"}).exit_code, kExitOk);
  EXPECT_EQ(daemon_.budgets.ram_bytes(), 0u);
  EXPECT_EQ(Run({"budget", "--ram", "much"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"budget", "--ssd", "0"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"budget", "--ram", "50%"}).exit_code, kExitUsage);
}

TEST_F(CommandsTest, SpacesSetReplacesTheLimitsOfOneSpace) {
  const Ran ran =
      Run({"spaces", "--set", "3f", "--ram-floor", "1GiB", "--ssd-floor", "4GiB", "--ttl", "24h"});
  EXPECT_EQ(ran.exit_code, kExitOk) << ran.err;
  EXPECT_EQ(daemon_.limited.space_id(), SampleId(0x3f));
  EXPECT_EQ(daemon_.limited.limits().ram_floor_bytes(), uint64_t{1} << 30);
  EXPECT_EQ(daemon_.limited.limits().ram_ceiling_bytes(), 0u);
  EXPECT_EQ(daemon_.limited.limits().ssd_floor_bytes(), uint64_t{4} << 30);
  EXPECT_EQ(daemon_.limited.limits().ttl_ms(), 86'400'000u);
  EXPECT_EQ(ran.out,
            "space 3f0000000000: ram floor 1.0 GiB, ram ceiling none, ssd floor 4.0 GiB, "
            "ssd ceiling none, ttl 1 d 0 h\n");
  EXPECT_EQ(Run({"spaces", "--ram-floor", "1GiB"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"spaces", "--set", "3f", "--explain", "3f"}).exit_code, kExitUsage);
}

TEST_F(CommandsTest, WhyAsksForARequestOrForTheLastThatWereShort) {
  EXPECT_EQ(Run({"why", "chat-17"}).exit_code, kExitOk);
  EXPECT_EQ(daemon_.asked_why.request_id(), "chat-17");
  EXPECT_EQ(daemon_.asked_why.last(), 20u);
  ASSERT_EQ(Run({"why", "--last", "5", "--below", "50%"}).exit_code, kExitOk);
  EXPECT_EQ(daemon_.asked_why.request_id(), "");
  EXPECT_EQ(daemon_.asked_why.last(), 5u);
  EXPECT_DOUBLE_EQ(daemon_.asked_why.below(), 0.5);
  EXPECT_EQ(Run({"why", "--below", "150%"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"why", "--below", "half"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"why", "--last", "0"}).exit_code, kExitUsage);
}

TEST_F(CommandsTest, PrefixesAsksForOneSpaceOrForAll) {
  ASSERT_EQ(Run({"prefixes"}).exit_code, kExitOk);
  EXPECT_EQ(daemon_.asked_prefixes.most(), 20u);
  EXPECT_EQ(daemon_.asked_prefixes.space_id(), "");
  ASSERT_EQ(Run({"prefixes", "--space", "3f", "--most", "100"}).exit_code, kExitOk);
  EXPECT_EQ(daemon_.asked_prefixes.most(), 100u);
  EXPECT_EQ(daemon_.asked_prefixes.space_id(), SampleId(0x3f));
  EXPECT_EQ(Run({"prefixes", "--most", "1001"}).exit_code, kExitUsage);
}

TEST_F(CommandsTest, ASpaceIsNamedByEnoughDigits) {
  const Ran none = Run({"match", "--space", "99", "--tokens", "1"});
  EXPECT_EQ(none.exit_code, kExitRefused);
  EXPECT_THAT(none.err, HasSubstr("no space begins with 99: prefixctl spaces lists the 2"));
  *daemon_.spaces.add_spaces() = SampleSpace(0x31);
  const Ran many = Run({"match", "--space", "3", "--tokens", "1"});
  EXPECT_EQ(many.exit_code, kExitRefused);
  EXPECT_THAT(many.err, HasSubstr("several spaces begin with 3, 3f0000000000 and 310000000000"));
}

TEST_F(CommandsTest, ExplainAsksTheDaemonToCompare) {
  const Ran ran = Run({"spaces", "--explain", "40"});
  EXPECT_EQ(ran.exit_code, kExitOk) << ran.err;
  EXPECT_EQ(daemon_.explained, SampleId(0x40));
  EXPECT_THAT(ran.out, HasSubstr("space 40"));
}

TEST_F(CommandsTest, ClearAsksAndTakesNoForAnAnswer) {
  const Ran no = Run({"clear", "--space", "3f"}, "n\n");
  EXPECT_EQ(no.exit_code, kExitUsage);
  EXPECT_THAT(no.err,
              HasSubstr("Forget space 3f0000000000 (Qwen3-0.6B), in RAM and on SSD? [y/N]"));
  EXPECT_EQ(Run({"clear", "--all"}, "\n").exit_code, kExitUsage);
  EXPECT_THAT(daemon_.cleared, IsEmpty());
  EXPECT_EQ(Run({"clear", "--space", "3f"}, "y\n").exit_code, kExitOk);
  EXPECT_THAT(daemon_.cleared, ElementsAre(SampleId(0x3f)));
}

TEST_F(CommandsTest, ClearWithoutATerminalWantsYes) {
  const Ran ran = Run({"clear", "--all"});
  EXPECT_EQ(ran.exit_code, kExitUsage);
  EXPECT_THAT(ran.err, HasSubstr("say --yes"));
  EXPECT_THAT(daemon_.cleared, IsEmpty());
  EXPECT_EQ(Run({"clear", "--all", "--yes"}).out, "cleared 2 spaces, 0 B of pages\n");
  EXPECT_THAT(daemon_.cleared, ElementsAre(""));
}

TEST_F(CommandsTest, APurgeGoesOnToItsEndAndSaysWhatIsBeingReadStill) {
  const Ran ran = Run({"clear", "--space", "3f", "--purge", "--yes"});
  EXPECT_EQ(ran.exit_code, kExitOk) << ran.err;
  EXPECT_THAT(daemon_.purge_cursors, ElementsAre(0, 10, 20));
  EXPECT_EQ(ran.out,
            "purged 1 space, 0 B of pages; files of 2.0 MiB removed, 2.0 KiB of other spaces "
            "written again\n");
  daemon_.purge_leaves = 4096;
  const Ran held = Run({"clear", "--all", "--purge", "--yes"});
  EXPECT_EQ(held.exit_code, kExitRefused);
  EXPECT_THAT(held.out, HasSubstr("4.0 KiB are being read still"));
  EXPECT_THAT(Run({"--json", "clear", "--all", "--purge", "--yes"}).out,
              HasSubstr("\"removed_bytes\":2097152"));
}

TEST_F(CommandsTest, ASessionIsEndedByEnoughDigits) {
  EXPECT_THAT(Run({"sessions"}).out, HasSubstr("worker-1"));
  EXPECT_THAT(daemon_.ended, IsEmpty());
  const Ran ran = Run({"sessions", "--end", "5f4"});
  EXPECT_EQ(ran.exit_code, kExitOk) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("process 41872 lives"));
  EXPECT_THAT(daemon_.ended, ElementsAre(0x5f4a000000000000u));
  EXPECT_THAT(Run({"sessions", "--end", "5f"}).err, HasSubstr("several sessions begin with 5f"));
  EXPECT_THAT(Run({"sessions", "--end", "77"}).err, HasSubstr("no session begins with 77"));
  EXPECT_EQ(daemon_.ended.size(), 1u);
}

TEST_F(CommandsTest, LeasesSayWhoReadsWhat) {
  const auto json = nlohmann::json::parse(Run({"leases", "--json"}).out);
  EXPECT_EQ(json["leases"][0]["session"], "5f3a000000000000");
  EXPECT_EQ(json["leases"][0]["tokens"], 2'048);
  EXPECT_EQ(nlohmann::json::parse(Run({"sessions", "--json"}).out)["sessions"][1]["attached"],
            false);
}

TEST_F(CommandsTest, FlushThatLeavesBytesFails) {
  EXPECT_EQ(Run({"flush"}).exit_code, kExitOk);
  daemon_.flushed.set_dirty_bytes(1);
  EXPECT_EQ(Run({"flush"}).exit_code, kExitRefused);
}

TEST_F(CommandsTest, LongCommandsShowTheirProgressToWhoeverReadsAlong) {
  EXPECT_THAT(Run({"verify"}, "y").err, HasSubstr(" bad"));
  EXPECT_THAT(Run({"clear", "--all", "--purge", "--yes"}, "y").err, HasSubstr("2.0 MiB removed"));
  for (const std::string& typed : {std::string(), std::string("y")}) {
    std::vector<std::string> arguments = {"verify"};
    if (!typed.empty()) arguments.push_back("--json");
    EXPECT_EQ(Run(arguments, typed).err, "") << "nobody reads along";
  }
}

TEST_F(CommandsTest, AFlushShowsWhatIsInRamOnlyUntilItEnds) {
  daemon_.flush_waits_for_stats = 2;
  EXPECT_THAT(Run({"flush"}, "y").err, HasSubstr(" in RAM only"));
  EXPECT_GE(daemon_.stats_asked, 2);
}

TEST_F(CommandsTest, VerifyGoesThroughEverythingAndFailsOnABadPage) {
  const Ran ran = Run({"verify", "--rate", "200MB"});
  EXPECT_EQ(ran.exit_code, kExitRefused);
  EXPECT_EQ(ran.out,
            "verified 6 pages, 3.0 MiB (6 in use passed over): 1 bad and dropped "
            "(prefixd's log says which)\n");
  ASSERT_EQ(daemon_.verified.size(), 3u);
  EXPECT_EQ(daemon_.verified[2].cursor(), 20u);
  EXPECT_EQ(daemon_.verified[2].bytes_per_second(), 200'000'000u);
  const auto json = nlohmann::json::parse(Run({"verify", "--json"}).out);
  EXPECT_EQ(json["pages"], 6);
  EXPECT_EQ(json["bad"], 1);
  EXPECT_EQ(json["in_use"], 6);
  EXPECT_EQ(daemon_.verified.back().bytes_per_second(), 0u);
  EXPECT_EQ(Run({"verify", "--rate", "1kB"}).exit_code, kExitUsage);
}

TEST_F(CommandsTest, PrefetchHandsThePromptOn) {
  EXPECT_EQ(Run({"prefetch", "--space", "3f", "--tokens", "1,2,3"}).exit_code, kExitNothing);
  daemon_.hint.set_restorable_tokens(1'500);
  daemon_.hint.set_tokens(1'000);
  daemon_.hint.set_bytes(1 << 20);
  const Ran ran = Run({"prefetch", "--space", "3f", "--tokens", "1,2,3"});
  EXPECT_EQ(ran.exit_code, kExitOk) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("1,000 tokens are in RAM or on the way, 1.0 MiB"));
  EXPECT_THAT(ran.out, HasSubstr("left on the ssd: 500 tokens"));
  EXPECT_EQ(daemon_.prefetched.items(0).sequence().tokens_size(), 3);
  const auto json =
      nlohmann::json::parse(Run({"prefetch", "--space", "3f", "--tokens", "1,2,3", "--json"}).out);
  EXPECT_EQ(json["tokens"], 1'000);
}

TEST_F(CommandsTest, ARefusalIsToldInTheDaemonsWords) {
  daemon_.refusal = grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "clear: not now");
  const Ran ran = Run({"clear", "--all", "--yes"});
  EXPECT_EQ(ran.exit_code, kExitRefused);
  EXPECT_EQ(ran.err, "prefixctl: clear: not now\n");
  EXPECT_EQ(ran.out, "");
}

TEST_F(CommandsTest, NoDaemonIsToldWithWhatToDo) {
  const Ran ran = Run({"--server", "unix:///nonexistent/p.sock", "status"});
  EXPECT_EQ(ran.exit_code, kExitUnreachable);
  EXPECT_THAT(ran.err, HasSubstr("prefixd does not answer at unix:///nonexistent/p.sock: is it "
                                 "running? Start it"));
}

}  // namespace
}  // namespace prefixd::cli
