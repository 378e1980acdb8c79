// Numbers and tables as people read them.
#include "client/cli/units.h"

#include "gtest/gtest.h"

#include "client/cli/table.h"

namespace prefixd::cli {
namespace {

TEST(UnitsTest, CountsHaveThousands) {
  EXPECT_EQ(CountText(0), "0");
  EXPECT_EQ(CountText(999), "999");
  EXPECT_EQ(CountText(1'000), "1,000");
  EXPECT_EQ(CountText(27'234'816), "27,234,816");
}

TEST(UnitsTest, PercentOfNothingIsADash) {
  EXPECT_EQ(PercentText(1, 0), "-");
  EXPECT_EQ(PercentText(17, 44), "38.6 %");
  EXPECT_EQ(PercentText(3, 2), "150.0 %");  // never hidden
}

TEST(UnitsTest, UptimeNamesTheTwoLargestUnits) {
  EXPECT_EQ(UptimeText(-1), "0 s");
  EXPECT_EQ(UptimeText(59.9), "59 s");
  EXPECT_EQ(UptimeText(187), "3 min 7 s");
  EXPECT_EQ(UptimeText(3 * 3600 + 12 * 60), "3 h 12 min");
  EXPECT_EQ(UptimeText(52 * 3600), "2 d 4 h");
}

TEST(UnitsTest, SecondsMayBeNegative) {
  EXPECT_EQ(SecondsText(12.44), "12.4 s");
  EXPECT_EQ(SecondsText(-0.3), "-0.3 s");
  EXPECT_EQ(SecondsText(-3720), "-1 h 2 min");
}

TEST(UnitsTest, LatencyChangesUnitWithoutFourDigits) {
  EXPECT_EQ(LatencyText(0), "0 us");
  EXPECT_EQ(LatencyText(999), "999 us");
  EXPECT_EQ(LatencyText(999.6), "1.0 ms");
  EXPECT_EQ(LatencyText(1'234), "1.2 ms");
  EXPECT_EQ(LatencyText(999'960), "1.0 s");
  EXPECT_EQ(LatencyText(3'400'000), "3.4 s");
}

TEST(UnitsTest, BarShowsThatSomethingIsThereAndNeverOverflows) {
  EXPECT_EQ(BarText(0, 0), "[--------------------]");
  EXPECT_EQ(BarText(0, 100), "[--------------------]");
  EXPECT_EQ(BarText(1, 1'000'000), "[#-------------------]");
  EXPECT_EQ(BarText(42, 100), "[########------------]");
  EXPECT_EQ(BarText(200, 100), "[####################]");
}

TEST(UnitsTest, NamesCannotCommandATerminal) {
  EXPECT_EQ(PrintableText("evil\x1b[2J\n"), "evil?[2J?");
  EXPECT_EQ(PrintableText("Qwen3-0.6B"), "Qwen3-0.6B");
}

TEST(TableTest, ColumnsAlignAndLinesEndWithoutBlanks) {
  Table table({{"name"}, {"n", Table::Align::kRight}, {"note"}});
  table.AddRow({"a", "1,000", ""});
  table.AddRow({"long name", "2", "x"});
  EXPECT_EQ(table.Text(2),
            "  name           n  note\n"
            "  a          1,000\n"
            "  long name      2  x\n");
}

TEST(TableTest, CharactersOfMoreThanOneByteTakeOneColumn) {
  Table table({{""}, {""}});
  table.AddRow({"M\xc3\xbcller", "1"});
  table.AddRow({"Mueller", "2"});
  EXPECT_EQ(table.Text(), "M\xc3\xbcller   1\nMueller  2\n");
}

}  // namespace
}  // namespace prefixd::cli
