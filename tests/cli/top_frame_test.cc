// Frames of prefixctl top: what fits, and what stands in them.
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "client/cli/top/chart.h"
#include "client/cli/top/frame.h"
#include "client/cli/top/keys.h"
#include "client/cli/top/text.h"
#include "tests/cli/top_samples.h"

namespace prefixd::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr TopSize kSizes[] = {{80, 24}, {120, 40}, {200, 60}, {40, 12}, {20, 5}, {1, 1}, {132, 0}};

std::string Text(const TopView& view, const TopSize& size) {
  std::string text;
  for (const TopLine& line : RenderTop(view, size)) text += line.text + "\n";
  return text;
}

bool IsPlainAscii(const std::string& text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return c == '\n' || (c >= 0x20 && c < 0x7f); });
}

// Views with everything that a screen may have to cope with.
std::vector<TopView> ManyViews() {
  std::vector<TopView> views;
  views.push_back(BusyView(200));
  TopView view = BusyView(3);
  for (int i = 0; i < 100; ++i) {
    v1::SpaceStats space = SampleSpaceStats(static_cast<unsigned char>(i));
    space.set_model(i % 2 == 0 ? std::string(300, 'm') : "大きなモデル\x1b[31m\xff é");
    space.set_stored_tokens(UINT64_MAX);
    space.set_ram_extent_bytes(UINT64_MAX);
    *view.latest->stats.add_spaces() = space;
  }
  view.latest->prefixes = SamplePrefixes();
  view.latest->sessions[1].set_worker("w\x9b 大\xc2\x9b" + std::string(500, 'w'));
  view.latest->stats.mutable_remote()->set_known(true);
  view.latest->stats.mutable_remote()->add_servers()->set_open(true);
  views.push_back(view);
  view.paused = true;
  view.drilled = SampleId(0x3f);
  views.push_back(view);
  view.drilled = SampleId(0xee);  // gone
  views.push_back(view);
  view.failure = "no such socket " + std::string(200, '/');
  view.failed_s = 3'700;
  views.push_back(view);
  TopView empty;
  empty.address = std::string(300, 'a');
  views.push_back(empty);
  empty.latest = Sample();
  views.push_back(empty);
  return views;
}

TEST(TopFrameTest, S2NoLineIsWiderThanTheScreenAndNoMoreLinesThanFit) {
  for (TopView view : ManyViews()) {
    for (const bool utf8 : {false, true}) {
      view.utf8 = utf8;
      for (const TopSize& size : kSizes) {
        const std::vector<TopLine> lines = RenderTop(view, size);
        EXPECT_LE(lines.size(), size.rows > 0 ? size.rows : SIZE_MAX);
        for (const TopLine& line : lines) EXPECT_LE(Columns(line.text), size.columns) << line.text;
      }
    }
  }
}

TEST(TopFrameTest, TheHottestPrefixesStandAsATreeWhereThereIsRoom) {
  TopView view = BusyView(3);
  view.latest->prefixes = SamplePrefixes();
  for (const TopSize& size : {TopSize{120, 50}, TopSize{80, 0}}) {
    EXPECT_THAT(Text(view, size), AllOf(HasSubstr("HOTTEST PREFIX"), HasSubstr("\n0 to 1,024 "),
                                        HasSubstr("\n  1,024 to 9,792 ")));
  }
  view.drilled = SampleId(0x3f);
  EXPECT_THAT(Text(view, {120, 50}), HasSubstr("\n0 to 1,024 "));
  view.drilled = SampleId(0xee);
  EXPECT_THAT(Text(view, {120, 50}), Not(HasSubstr("HOTTEST PREFIX")));
}

TEST(TopFrameTest, WithoutUtf8NothingButPrintableAsciiIsShown) {
  for (const TopView& view : ManyViews()) {
    for (const TopSize& size : kSizes) EXPECT_TRUE(IsPlainAscii(Text(view, size)));
  }
}

TEST(TopFrameTest, ControlCharactersOfWorkersReachNoTerminal) {
  for (TopView view : ManyViews()) {
    view.utf8 = true;
    const std::string text = Text(view, {200, 60});
    EXPECT_THAT(text,
                AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\xff")), Not(HasSubstr("\xc2\x9b"))));
  }
}

TEST(TopFrameTest, S2AFrameOf80By24) {
  EXPECT_EQ(Text(BusyView(120), {80, 24}),
            R"( prefixd 0.1.0 serving, up 2 min 1 s  unix:///run/prefixd/prefixd.so~ every 1 s 
hit rate  75.0 % now, 75.0 % last minute, 75.0 % since start
100% |
     |::::::::::::::::::::::::::::::::::::::::::::::::::::::::::::::::::::::::::
     |##########################################################################
     |##########################################################################
     |##########################################################################
  0% |##########################################################################
      1 min 14 s ago                                                         now
tokens  100/s asked, 75/s found, 75/s used; 1/s requests
saved   9,000 tokens, 12.4 s since start; 4,500 tokens, 0.0 s last minute
ram  [########----------]   42.2 %  108.0 MiB of 256.0 MiB    66.7 % of hits
ssd  [##----------------]    9.8 %  100.0 MiB of 1.0 GiB      33.3 % of hits
evicts 0 B/s; median idle time 1.5 s last minute, 1.5 s since start
disk  reads 0 B/s, writes 1.2 MiB/s; wear 150.0 MiB, 20.0 % of it again
2 sessions, 1 lease of 13.0 MiB, 2 pins of 3.0 MiB, 0 reservations
SPACE     MODEL                HIT   *ASKED/S       TOKENS        RAM        SSD
3f000000  Qwen3-0.6B        75.0 %        100          447   26.7 MiB   13.1 MiB

SESSION           WORKER             READS              AGE   LEASES      LEASED
5f3a000000000000  worker-0           in place    3 min 10 s        2     2.0 MiB
5f4a000000000000  worker-1           cut off     2 min 10 s        1     1.0 MiB
5f5a000000000000  worker-2           copies      1 min 10 s        0         0 B
q quit  p pause  s sort  up/down choose  Enter into the space                   
)");
}

TEST(TopFrameTest, S2BarsShowHowFullTheTiersAre) {
  TopView view = BusyView(3);
  EXPECT_THAT(Text(view, {80, 24}), AllOf(HasSubstr("ram  [########----------]   42.2 %"),
                                          HasSubstr("ssd  [##----------------]    9.8 %")));
  view.utf8 = true;
  EXPECT_THAT(Text(view, {80, 24}), HasSubstr("ram  [████████░░░░░░░░░░]   42.2 %"));
}

TEST(TopFrameTest, TiersThatAreNotThereTakeNoLines) {
  TopView view = BusyView(3);
  view.latest->stats.set_ssd_budget_bytes(0);
  EXPECT_THAT(Text(view, {80, 24}),
              AllOf(Not(HasSubstr("\nssd")), Not(HasSubstr("\ndisk")), Not(HasSubstr("\nfar"))));
  v1::Remote* remote = view.latest->stats.mutable_remote();
  remote->set_known(true);
  remote->add_servers();
  remote->add_servers()->set_open(true);
  EXPECT_THAT(Text(view, {80, 24}),
              HasSubstr("far  [#########---------]      1/2  servers answer: TROUBLE"));
}

TEST(TopFrameTest, WithoutRequestsThereAreDashesAndNoNumbers) {
  TopView view;
  view.latest = Sample{.health = "serving", .stats = v1::GetStatsReply()};
  const std::string text = Text(view, {80, 24});
  EXPECT_THAT(text, HasSubstr("hit rate  - now, - last minute, - since start"));
  EXPECT_THAT(text, HasSubstr("no spaces yet"));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
}

TEST(TopFrameTest, S2ADaemonThatDoesNotAnswerIsSaidAndTheLastNumbersStay) {
  TopView view = BusyView(3);
  view.failure = "connection refused";
  view.failed_s = 61;
  EXPECT_THAT(Text(view, {80, 24}),
              AllOf(HasSubstr("DOES NOT ANSWER"),
                    HasSubstr("no answer for 1 min 1 s, trying again: connection refused"),
                    HasSubstr("hit rate  75.0 % now")));
}

TEST(TopFrameTest, SpacesAreHiddenWhereTheDaemonHidesThem) {
  TopView view = BusyView(3);
  view.latest->stats.clear_spaces();
  view.latest->stats.set_spaces_hidden(true);
  EXPECT_THAT(Text(view, {80, 24}), HasSubstr("shown on the admin socket only"));
}

// Three spaces: by what is stored c, b, a; by model a, b, c.
TopView ThreeSpaces() {
  TopView view = BusyView(3);
  view.latest->stats.clear_spaces();
  for (const char name : {'b', 'c', 'a'}) {
    v1::SpaceStats space = SampleSpaceStats(static_cast<unsigned char>(name));
    space.set_model(std::string("model ") + name);
    space.set_stored_tokens(static_cast<uint64_t>(name));
    *view.latest->stats.add_spaces() = space;
  }
  return view;
}

std::vector<std::string> Models(const TopView& view) {
  std::vector<std::string> models;
  for (const v1::SpaceStats& space : SortedSpaces(view)) models.push_back(space.model());
  return models;
}

TEST(TopKeysTest, SSortsByTheNextColumnAndComesRound) {
  TopView view = ThreeSpaces();
  view.order = SpaceOrder::kTokens;
  EXPECT_THAT(Models(view), ElementsAre("model c", "model b", "model a"));
  EXPECT_THAT(Text(view, {80, 24}), HasSubstr("*TOKENS"));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(OnKey(TopKey::kSort, &view));
  EXPECT_EQ(view.order, SpaceOrder::kModel);
  EXPECT_THAT(Models(view), ElementsAre("model a", "model b", "model c"));
  OnKey(TopKey::kSort, &view);
  EXPECT_EQ(view.order, SpaceOrder::kAsked);
}

TEST(TopKeysTest, ArrowsChooseASpaceEnterShowsItAloneAndEscGoesBack) {
  TopView view = ThreeSpaces();
  view.order = SpaceOrder::kModel;
  OnKey(TopKey::kUp, &view);
  EXPECT_EQ(view.chosen, SampleId('a'));
  OnKey(TopKey::kDown, &view);
  OnKey(TopKey::kEnter, &view);
  EXPECT_EQ(view.drilled, SampleId('b'));
  EXPECT_THAT(Text(view, {80, 24}),
              AllOf(HasSubstr("space 620000000000  model b"), Not(HasSubstr("model c"))));
  OnKey(TopKey::kBack, &view);
  EXPECT_EQ(view.drilled, "");
  OnKey(TopKey::kPageDown, &view);
  EXPECT_EQ(view.chosen, SampleId('c'));
}

TEST(TopKeysTest, EnterWithoutSpacesStaysWhereItIs) {
  TopView view;
  EXPECT_TRUE(OnKey(TopKey::kEnter, &view));
  EXPECT_EQ(view.drilled, "");
}

TEST(TopKeysTest, OnlyQuitEnds) {
  TopView view = BusyView(1);
  EXPECT_TRUE(OnKey(TopKey::kPause, &view));
  EXPECT_TRUE(view.paused);
  EXPECT_THAT(Text(view, {80, 24}), AllOf(HasSubstr("PAUSED"), HasSubstr("p go on")));
  EXPECT_FALSE(OnKey(TopKey::kQuit, &view));
}

TEST(TopFrameTest, TheChosenSpaceIsAlwaysOnTheScreen) {
  TopView view = ManyViews()[1];
  const std::vector<v1::SpaceStats> spaces = SortedSpaces(view);
  for (size_t i = 0; i < spaces.size(); ++i) {
    view.chosen = spaces[i].space_id();
    const std::vector<TopLine> lines = RenderTop(view, {80, 24});
    EXPECT_EQ(
        std::count_if(lines.begin(), lines.end(),
                      [](const TopLine& line) { return line.look == TopLine::Look::kReverse; }),
        3)
        << i;  // the title, the space and the keys
  }
}

TEST(ChartTest, ValuesAreColumnsFromTheBottom) {
  EXPECT_THAT(Chart({-1, 0, 0.5, 1}, 2, false), ElementsAre("   #", " .##"));
  EXPECT_THAT(Chart({0.25, 1}, 1, true), ElementsAre("▂█"));
}

TEST(ChartTest, ABarIsFullOnlyAtTheTopAndEmptyOnlyAtZero) {
  EXPECT_EQ(Bar(0, 6, false), "[----]");
  EXPECT_EQ(Bar(0.001, 6, false), "[#---]");
  EXPECT_EQ(Bar(0.999, 6, false), "[###-]");
  EXPECT_EQ(Bar(1, 6, false), "[####]");
  EXPECT_EQ(Bar(7, 3, false), "[#]");
}

TEST(TopTextTest, WideCharactersTakeTwoColumnsAndMarksNone) {
  EXPECT_EQ(Columns("ab"), 2u);
  EXPECT_EQ(Columns("大a"), 3u);
  EXPECT_EQ(Columns("e\xcc\x81"), 1u);
  EXPECT_EQ(Left("大大大", 4), "大~ ");
  EXPECT_EQ(Right("大", 3), " 大");
  EXPECT_EQ(Cut("abc", 2), "a~");
  EXPECT_EQ(Cut("abc", 0), "");
}

TEST(TopTextTest, WhatATerminalObeysBecomesAQuestionMark) {
  EXPECT_EQ(Shown("a\x1b[1m\n\x7f\xc2\x9b\xe2\x80\xae\xff", true), "a?[1m?????");
  EXPECT_EQ(Shown("大é", false), "??");
  EXPECT_EQ(Shown("大é", true), "大é");
  EXPECT_EQ(Shown("\xe5\xa4", true), "??");  // cut short
}

}  // namespace
}  // namespace prefixd::cli
