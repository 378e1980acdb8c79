// Commands and replies as bytes.
#include "remote/resp.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/bytes.h"
#include "tests/remote/bytes.h"

namespace prefixd::remote {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// What a reader makes of bytes that come in pieces of at most `piece`.
struct Read {
  std::vector<Reply> replies;
  bool broken = false;
  bool operator==(const Read&) const = default;
};
void Drain(ReplyReader* reader, Read* read) {
  Reply reply;
  ReplyReader::State state;
  while ((state = reader->Next(&reply)) == ReplyReader::State::kReply) {
    read->replies.push_back(std::move(reply));
  }
  read->broken = state == ReplyReader::State::kBroken;
}
Read Feed(ReplyReader* reader, const std::string& bytes, size_t piece) {
  Read read;
  std::array<iovec, ReplyReader::kMostPlaces> places;
  for (size_t at = 0; at < bytes.size() && !read.broken;) {
    const size_t count = reader->Places(&places);
    size_t taken = 0;
    for (size_t i = 0; i < count && taken < piece; ++i) {
      const size_t some = std::min({places[i].iov_len, bytes.size() - at, piece - taken});
      std::memcpy(places[i].iov_base, bytes.data() + at, some);
      at += some;
      taken += some;
      if (some < places[i].iov_len) break;
    }
    reader->Arrived(taken);
    Drain(reader, &read);
  }
  return read;
}
Read FeedAll(const std::string& bytes, size_t piece = std::string::npos) {
  ReplyReader reader;
  return Feed(&reader, bytes, piece);
}
Reply One(const std::string& bytes) {
  Read read = FeedAll(bytes);
  return read.replies.size() == 1 ? read.replies[0] : Reply{.text = "not one reply"};
}

std::string TextOfCommands(Commands* commands, size_t step) {
  std::string text;
  std::array<iovec, 3> places;
  while (text.size() < commands->bytes()) {
    const size_t count = commands->Rest(text.size(), places);
    size_t left = step;
    for (size_t i = 0; i < count && left > 0; ++i) {
      const size_t some = std::min(left, places[i].iov_len);
      text.append(static_cast<const char*>(places[i].iov_base), some);
      left -= some;
    }
  }
  return text;
}

TEST(CommandsTest, AreArraysOfBulkStringsWhateverIsSentAtATime) {
  const std::string a = "abc", b = "defg";
  for (const size_t step : {1, 2, 5, 1000}) {
    Commands commands;
    commands.Call({"GET", "k"});
    commands.Begin(3).Add("SET").Borrow(ConstRuns{base::AsBytes(a), {}, base::AsBytes(b)}).Add("");
    EXPECT_EQ(TextOfCommands(&commands, step),
              "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*3\r\n$3\r\nSET\r\n$7\r\nabcdefg\r\n$0\r\n\r\n");
  }
}

TEST(CommandsTest, AppendedCommandsBorrowTheSameBytes) {
  const std::string large(100, 'x');
  Commands one, all;
  one.Begin(2).Add("A").Borrow(base::AsBytes(large));
  all.Call({"B"}).Append(one);
  all.Append(one);
  EXPECT_EQ(TextOfCommands(&all, 7), "*1\r\n$1\r\nB\r\n*2\r\n$1\r\nA\r\n$100\r\n" + large +
                                         "\r\n*2\r\n$1\r\nA\r\n$100\r\n" + large + "\r\n");
}

TEST(ReplyReaderTest, ReadsEveryTypeOfBothVersions) {
  using Kind = Reply::Kind;
  EXPECT_EQ(One("+OK\r\n"), (Reply{.kind = Kind::kSimple, .text = "OK"}));
  EXPECT_EQ(One("-ERR no\r\n"), (Reply{.kind = Kind::kError, .text = "ERR no"}));
  EXPECT_EQ(One("!6\r\nERR no\r\n"), (Reply{.kind = Kind::kError, .text = "ERR no"}));
  EXPECT_EQ(One(":-7\r\n"), (Reply{.kind = Kind::kInteger, .integer = -7}));
  EXPECT_EQ(One("$3\r\na\rb\r\n"), (Reply{.kind = Kind::kText, .text = "a\rb"}));
  EXPECT_EQ(One("$0\r\n\r\n"), (Reply{.kind = Kind::kText}));
  EXPECT_EQ(One("$-1\r\n"), Reply{});
  EXPECT_EQ(One("*-1\r\n"), Reply{});
  EXPECT_EQ(One("_\r\n"), Reply{});
  EXPECT_EQ(One("#t\r\n"), (Reply{.kind = Kind::kBool, .integer = 1}));
  EXPECT_EQ(One(",1.5e3\r\n"), (Reply{.kind = Kind::kNumber, .text = "1.5e3"}));
  EXPECT_EQ(One("(123456789012345678901\r\n"),
            (Reply{.kind = Kind::kNumber, .text = "123456789012345678901"}));
  EXPECT_EQ(One("=7\r\ntxt:abc\r\n"), (Reply{.kind = Kind::kText, .text = "abc"}));
  EXPECT_EQ(One("*2\r\n:1\r\n*0\r\n").items.size(), 2u);
  EXPECT_EQ(One("%1\r\n+k\r\n+v\r\n").kind, Kind::kMap);
  EXPECT_EQ(One("%1\r\n+k\r\n+v\r\n").items.size(), 2u);
  EXPECT_EQ(One("~1\r\n+k\r\n").kind, Kind::kSet);
}

TEST(ReplyReaderTest, DropsPushesAndAttributes) {
  const Read read =
      FeedAll(">2\r\n+x\r\n:1\r\n|1\r\n+ttl\r\n:9\r\n*2\r\n:1\r\n|1\r\n+a\r\n+b\r\n:2\r\n+OK\r\n");
  ASSERT_EQ(read.replies.size(), 2u);
  EXPECT_EQ(read.replies[0].items.size(), 2u);
  EXPECT_EQ(read.replies[1].text, "OK");
}

TEST(ReplyReaderTest, RefusesWhatIsNoReply) {
  for (const char* const bytes :
       {"\r\n", "x\r\n", "HTTP/1.1 400 Bad Request\r\n", ":\r\n", ":1x\r\n", "$-2\r\n", "*-2\r\n",
        "$1\r\nab\r\n", "#x\r\n", "_x\r\n", "=2\r\nab\r\n", "=4\r\nabcd\r\n", "$99999999999\r\n",
        "*99999999999\r\n", "$999999999999999999999\r\n", "*1\r\n>1\r\n+x\r\n"}) {
    EXPECT_TRUE(FeedAll(bytes).broken) << bytes;
  }
  std::string deep;
  for (int i = 0; i < 20; ++i) deep += "*1\r\n";
  EXPECT_TRUE(FeedAll(deep).broken);
  EXPECT_TRUE(FeedAll("+" + std::string(20'000, 'a')).broken);
  EXPECT_FALSE(FeedAll("*1\r\n$5\r\nab").broken);
}

TEST(ReplyReaderTest, ItemsOfAllLevelsTogetherHaveALimit) {
  std::string bytes = "*2\r\n";
  const size_t half = ReplyReader::kMaxItems / 2 + 1;
  for (int i = 0; i < 2; ++i) {
    bytes += "*" + std::to_string(half) + "\r\n";
    for (size_t j = 0; j < half; ++j) bytes += "_\r\n";
  }
  EXPECT_TRUE(FeedAll(bytes).broken);
}

// A reply of stripes, as HMGET gives it.
std::string Array(const std::vector<std::string>& items) {
  std::string bytes = "*" + std::to_string(items.size()) + "\r\n";
  for (const std::string& item : items) {
    bytes +=
        item == "null" ? "$-1\r\n" : "$" + std::to_string(item.size()) + "\r\n" + item + "\r\n";
  }
  return bytes;
}

TEST(ReplyReaderTest, BulkStringsGoIntoTheirRunsInWhateverPiecesTheyCome) {
  for (const size_t piece : {1u, 2u, 63u, 64u, 65u, 5000u, 1'000'000u}) {
    testing::Bundle bundle({1, 5000, 0, 100'000, 77}, 3);
    ReplyReader reader;
    const std::vector<Runs> runs = bundle.in();
    reader.Expect({});
    reader.Expect(runs);
    reader.Expect({});
    const Read read = Feed(&reader, "+before\r\n" + Array(bundle.stripes) + "+after\r\n", piece);
    ASSERT_EQ(read.replies.size(), 3u) << piece;
    EXPECT_TRUE(bundle.arrived()) << piece;
    for (const Reply& item : read.replies[1].items) EXPECT_EQ(item.kind, Reply::Kind::kFilled);
    EXPECT_EQ(read.replies[2].text, "after");
    EXPECT_EQ(reader.expected(), 0u);
  }
}

TEST(ReplyReaderTest, LargeStringsAreReceivedInPlace) {
  testing::Bundle bundle({100'000, 100'000}, 4);
  const std::vector<Runs> runs = bundle.in();
  ReplyReader reader;
  reader.Expect(runs);
  std::array<iovec, ReplyReader::kMostPlaces> places;
  const std::string bytes = Array(bundle.stripes);
  size_t copied = 0;  // read into the reader's own memory
  Read read;
  for (size_t at = 0; at < bytes.size();) {
    const size_t count = reader.Places(&places);
    size_t taken = 0;
    for (size_t i = 0; i < count; ++i) {
      const size_t some = std::min(places[i].iov_len, bytes.size() - at);
      std::memcpy(places[i].iov_base, bytes.data() + at, some);
      const auto* const place = static_cast<const std::byte*>(places[i].iov_base);
      const bool in_place = std::any_of(bundle.room.begin(), bundle.room.end(), [&](auto& room) {
        return place >= room.data() && place < room.data() + room.size();
      });
      if (!in_place) copied += some;
      at += some;
      taken += some;
    }
    reader.Arrived(taken);
    Drain(&reader, &read);
  }
  EXPECT_EQ(read.replies.size(), 1u);
  EXPECT_TRUE(bundle.arrived());
  EXPECT_LT(copied, 300u);
}

TEST(ReplyReaderTest, AnotherLengthIsReportedAndSkipped) {
  for (const size_t piece : {1u, 64u, 100'000u}) {
    testing::Bundle bundle({10, 5000, 20}, 5);
    const std::vector<Runs> runs = bundle.in();
    ReplyReader reader;
    reader.Expect(runs);
    reader.Expect({});
    const std::string longer = bundle.stripes[1] + "x";
    const Read read = Feed(&reader, Array({"null", longer, bundle.stripes[2]}) + ":5\r\n", piece);
    ASSERT_EQ(read.replies.size(), 2u);
    ASSERT_EQ(read.replies[0].items.size(), 3u);
    EXPECT_EQ(read.replies[0].items[0].kind, Reply::Kind::kNull);
    EXPECT_EQ(read.replies[0].items[1],
              (Reply{.kind = Reply::Kind::kOtherLength, .integer = 5001}));
    EXPECT_EQ(read.replies[0].items[2].kind, Reply::Kind::kFilled);
    EXPECT_EQ(base::AsText(bundle.room[2]), bundle.stripes[2]);
    EXPECT_EQ(base::AsText(bundle.room[1]), std::string(5000, '\xee'));
    EXPECT_EQ(read.replies[1].integer, 5);
  }
}

TEST(ReplyReaderTest, AShorterStringLeavesTheRunsToo) {
  testing::Bundle bundle({5000}, 5);
  const std::vector<Runs> runs = bundle.in();
  ReplyReader reader;
  reader.Expect(runs);
  const Read read = Feed(&reader, Array({std::string(4999, 'x')}), 64);
  ASSERT_EQ(read.replies.size(), 1u);
  EXPECT_EQ(read.replies[0].items[0], (Reply{.kind = Reply::Kind::kOtherLength, .integer = 4999}));
  EXPECT_EQ(base::AsText(bundle.room[0]), std::string(5000, '\xee'));
}

TEST(ReplyReaderTest, AnErrorInsteadOfTheStripesLeavesTheRuns) {
  testing::Bundle bundle({5000}, 6);
  const std::vector<Runs> runs = bundle.in();
  ReplyReader reader;
  reader.Expect(runs);
  const Read read = Feed(&reader, "-MOVED 1 127.0.0.1:7000\r\n", 1);
  ASSERT_EQ(read.replies.size(), 1u);
  EXPECT_TRUE(read.replies[0].error());
}

// A number in front of bytes is a claim: the reader has no more than came.
TEST(ReplyReaderTest, ClaimedLengthsTakeNoMemory) {
  ReplyReader reader;
  const Read read = Feed(&reader, "*500000\r\n$16000000\r\nabc", 5);
  EXPECT_FALSE(read.broken);
  EXPECT_THAT(read.replies, IsEmpty());
}

TEST(ReplyReaderTest, MutatedBytesAreReadAlikeHoweverTheyAreCut) {
  const std::vector<std::string> seeds = {
      Array({"abc", "null", std::string(5000, 'y')}) + "+OK\r\n:12\r\n",
      "%2\r\n+a\r\n*2\r\n_\r\n#f\r\n$1\r\nb\r\n,3.5\r\n>1\r\n+p\r\n-ERR x\r\n",
      "*2\r\n*3\r\n:0\r\n:5460\r\n*4\r\n$9\r\n127.0.0.1\r\n:7000\r\n$2\r\nid\r\n*0\r\n|1\r\n+a\r\n:"
      "1\r\n:5\r\n",
      "=8\r\ntxt:abcd\r\n!3\r\nERR\r\n(99999999999999999999\r\n~1\r\n+x\r\n"};
  std::mt19937_64 random(20261127);
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = seeds[random() % seeds.size()];
    for (uint64_t changes = random() % 4; changes > 0; --changes) {
      const size_t at = random() % bytes.size();
      if (random() % 3 == 0)
        bytes.erase(at, 1 + random() % 3);
      else
        bytes[at] = "0123456789$*%+-:\r\n|>"[random() % 20];
      if (bytes.empty()) bytes = "+\r\n";
    }
    testing::Bundle whole({3, 7, 5000}, 7), cut({3, 7, 5000}, 7);
    const std::vector<Runs> whole_runs = whole.in(), cut_runs = cut.in();
    ReplyReader a, b;
    a.Expect(whole_runs);
    b.Expect(cut_runs);
    const Read at_once = Feed(&a, bytes, std::string::npos);
    const Read in_pieces = Feed(&b, bytes, 1 + round % 5);
    ASSERT_EQ(at_once, in_pieces) << bytes;
    if (!at_once.replies.empty()) {
      ASSERT_EQ(whole.room, cut.room) << bytes;
    }
  }
}

}  // namespace
}  // namespace prefixd::remote
