// Which slot a request gets.
#include "client/llama/slot_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

namespace prefixd::llama {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using Tokens = std::vector<uint32_t>;

std::chrono::steady_clock::time_point Now() { return std::chrono::steady_clock::now(); }
std::chrono::steady_clock::time_point InAnHour() { return Now() + std::chrono::hours(1); }

class SlotTableTest : public ::testing::Test {
 protected:
  // Takes a slot, leaves `tokens` in it and gives it back. Returns which one it was.
  int Use(const Tokens& tokens) {
    std::optional<SlotTable::Held> held = slots_.Take(tokens, Now());
    EXPECT_TRUE(held.has_value());
    held->SetTokens(tokens);
    return held->place().slot;
  }
  SlotTable slots_;
};

TEST_F(SlotTableTest, TheSlotWithTheLongestBeginningIsTaken) {
  slots_.SetSlots(0, 3);
  const int one = Use({1, 2, 3, 4});
  const int other = Use({7, 8});
  EXPECT_NE(one, other);
  EXPECT_EQ(slots_.Take(Tokens{1, 2, 9}, Now())->place().slot, one);
  EXPECT_EQ(slots_.Take(Tokens{7}, Now())->place().slot, other);
  EXPECT_THAT(slots_.Take(Tokens{1, 2, 9}, Now())->tokens(), ElementsAre(1, 2, 3, 4));
}

TEST_F(SlotTableTest, AmongEqualOnesTheLeastRecentlyUsedIsTaken) {
  slots_.SetSlots(0, 3);
  const int first = Use({1}), second = Use({2}), third = Use({3});
  EXPECT_EQ(Use({4}), first);
  EXPECT_EQ(Use({5}), second);
  EXPECT_EQ(Use({6}), third);
}

TEST_F(SlotTableTest, AHeldSlotIsNobodyElses) {
  slots_.SetSlots(0, 1);
  std::optional<SlotTable::Held> held = slots_.Take(Tokens{1}, Now());
  ASSERT_TRUE(held.has_value());
  EXPECT_THAT(slots_.Use(), Pair(1, 1));
  EXPECT_FALSE(slots_.Take(Tokens{1}, Now()).has_value());
  std::thread waiter([&] { EXPECT_TRUE(slots_.Take(Tokens{1}, InAnHour()).has_value()); });
  held.reset();
  waiter.join();
  EXPECT_THAT(slots_.Use(), Pair(0, 1));
}

TEST_F(SlotTableTest, WhoAsksAgainAtOnceComesAfterThoseWhoWait) {
  slots_.SetSlots(0, 1);
  std::optional<SlotTable::Held> held = slots_.Take(Tokens{1}, Now());
  std::vector<int> order;  // whoever holds the slot writes
  const auto wait_in_line = [&](int name) {
    std::thread thread([&, name] {
      std::optional<SlotTable::Held> mine = slots_.Take(Tokens{1}, InAnHour());
      EXPECT_TRUE(mine.has_value());
      order.push_back(name);
    });
    while (slots_.Waiting() < static_cast<size_t>(name)) std::this_thread::yield();
    return thread;
  };
  std::vector<std::thread> line;
  for (int name = 1; name <= 8; ++name) line.push_back(wait_in_line(name));
  held.reset();
  EXPECT_TRUE(slots_.Take(Tokens{1}, InAnHour()).has_value());  // it lost no time
  order.push_back(9);
  for (std::thread& thread : line) thread.join();
  EXPECT_THAT(order, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST_F(SlotTableTest, WhoGaveUpWaitingHoldsUpNobody) {
  slots_.SetSlots(0, 1);
  std::optional<SlotTable::Held> held = slots_.Take(Tokens{1}, Now());
  EXPECT_FALSE(slots_.Take(Tokens{2}, Now()).has_value());
  EXPECT_EQ(slots_.Waiting(), 0u);
  held.reset();
  EXPECT_TRUE(slots_.Take(Tokens{3}, Now()).has_value());
}

TEST_F(SlotTableTest, SlotsOfSeveralServersAreOneTable) {
  slots_.SetSlots(0, 1);
  slots_.SetSlots(1, 1);
  std::optional<SlotTable::Held> one = slots_.Take(Tokens{}, Now());
  std::optional<SlotTable::Held> two = slots_.Take(Tokens{}, Now());
  ASSERT_TRUE(one.has_value() && two.has_value());
  EXPECT_NE(one->place().server, two->place().server);
}

TEST_F(SlotTableTest, AServerThatCameBackHasEmptySlotsAndPerhapsFewer) {
  slots_.SetSlots(0, 2);
  Use({1, 2});
  std::optional<SlotTable::Held> held = slots_.Take(Tokens{5}, Now());
  const int kept = held->place().slot;
  slots_.SetSlots(0, 2);
  EXPECT_THAT(slots_.Take(Tokens{1, 2}, Now())->tokens(), IsEmpty());
  slots_.SetSlots(0, static_cast<uint32_t>(kept));  // the held slot is one too many
  held.reset();
  EXPECT_THAT(slots_.Use(), Pair(0, static_cast<size_t>(kept)));
  slots_.SetSlots(0, 0);
  EXPECT_FALSE(slots_.Take(Tokens{}, Now()).has_value());
}

TEST_F(SlotTableTest, CommonPrefixesAreCounted) {
  EXPECT_EQ(CommonPrefix(Tokens{}, Tokens{1}), 0u);
  EXPECT_EQ(CommonPrefix(Tokens{1, 2, 3}, Tokens{1, 2}), 2u);
  EXPECT_EQ(CommonPrefix(Tokens{1, 5, 3}, Tokens{1, 2, 3}), 1u);
}

}  // namespace
}  // namespace prefixd::llama
