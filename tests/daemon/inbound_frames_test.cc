// T3: what a connection has sent of messages that are not whole, however its bytes are cut.
#include "daemon/inbound_frames.h"

#include <array>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace prefixd::daemon {
namespace {

constexpr uint64_t kStream = 40'960;  // what an open stream counts as
enum Type : uint8_t { kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6 };

std::string Number(uint64_t value, int bytes) {
  std::string text;
  while (bytes-- > 0) text.push_back(static_cast<char>(value >> 8 * bytes & 255));
  return text;
}
std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  return Number(payload.size(), 3) + static_cast<char>(type) + static_cast<char>(flags) +
         Number(stream, 4) + payload;
}
std::string Padded(uint8_t flags, uint32_t stream, const std::string& data, size_t padding) {
  return Frame(kData, flags | 8, stream,
               static_cast<char>(padding) + data + std::string(padding, 'p'));
}
std::string Message(const std::string& body) {
  return std::string(1, '\0') + Number(body.size(), 4) + body;
}
const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

void Feed(InboundFrames* frames, const std::string& text) {
  frames->Read(std::as_bytes(std::span(text)));
}

TEST(InboundFramesTest, T3AMessageCountsUntilItIsWhole) {
  InboundFrames frames;
  Feed(&frames, kPreface + Frame(kSettings, 0, 0, "123456") + Frame(kHeaders, 4, 1, "headers"));
  EXPECT_EQ(frames.unfinished_bytes(), kStream + 7);
  const std::string message = Message(std::string(1000, 'm'));
  Feed(&frames, Frame(kData, 0, 1, message.substr(0, 3)));
  Feed(&frames, Frame(kData, 0, 1, message.substr(3, 500)));
  EXPECT_EQ(frames.unfinished_bytes(), kStream + 7 + 498);
  Feed(&frames, Frame(kData, 0, 1, message.substr(503)));
  EXPECT_EQ(frames.unfinished_bytes(), kStream + 7);
  Feed(&frames, Frame(kData, 1, 1, ""));
  EXPECT_EQ(frames.unfinished_bytes(), 0u);
}

// gRPC cuts messages out of the buffers that it reads into.
TEST(InboundFramesTest, T3AByteOfAMessageKeepsItsWholeBuffer) {
  constexpr size_t kBuffer = 65'536;
  InboundFrames frames;
  frames.NextBuffer(kBuffer);
  Feed(&frames, kPreface + Frame(kHeaders, 4, 1, "") + Frame(kHeaders, 4, 3, ""));
  EXPECT_EQ(frames.unfinished_bytes(), 2 * kStream) << "headers are copied";
  const std::string message = Message("body");
  Feed(&frames, Frame(kData, 0, 1, message.substr(0, 1)) + Frame(kData, 0, 3, "\1"));
  EXPECT_EQ(frames.unfinished_bytes(), 2 * kStream + kBuffer) << "both stand in one";
  frames.NextBuffer(kBuffer);
  Feed(&frames, Frame(kPing, 0, 0, "12345678") + Frame(kData, 0, 1, message.substr(1, 6)));
  EXPECT_EQ(frames.unfinished_bytes(), 2 * kStream + 2 * kBuffer);
  frames.NextBuffer(kBuffer);
  Feed(&frames, Frame(kData, 0, 1, message.substr(7)));
  EXPECT_EQ(frames.unfinished_bytes(), 2 * kStream + kBuffer) << "the message is whole";
  Feed(&frames, Frame(kReset, 0, 3, "code"));
  EXPECT_EQ(frames.unfinished_bytes(), kStream);
}

TEST(InboundFramesTest, T3PaddingIsNoPartOfAMessageAndAStreamThatIsResetIsGone) {
  InboundFrames frames;
  const std::string message = Message(std::string(40, 'm'));
  Feed(&frames, kPreface + Frame(kHeaders, 4, 7, "") + Padded(0, 7, message.substr(0, 2), 200) +
                    Padded(0, 7, message.substr(2, 13), 5) + Frame(kPing, 0, 0, "12345678"));
  EXPECT_EQ(frames.unfinished_bytes(), kStream + 10);
  Feed(&frames, Frame(kReset, 0, 7, "code"));
  EXPECT_EQ(frames.unfinished_bytes(), 0u);
}

// A call that was refused while its message was coming: the peer need not end it any more.
TEST(InboundFramesTest, T3AStreamThatPrefixdEndedIsGoneWhateverStillComesOfIt) {
  const std::string message = Message(std::string(1000, 'm'));
  for (const std::string& end :
       {Frame(kHeaders, 5, 3, "status"), Frame(kData, 1, 3, "last"), Frame(kReset, 0, 3, "code")}) {
    for (size_t piece = 1; piece < 40; ++piece) {
      InboundFrames frames;
      Feed(&frames, kPreface + Frame(kHeaders, 4, 1, "h") + Frame(kHeaders, 4, 3, "h") +
                        Frame(kData, 0, 3, message.substr(0, 500)));
      ASSERT_EQ(frames.unfinished_bytes(), 2 * (kStream + 1) + 495);
      const std::string written = Frame(kSettings, 0, 0, "123456") + Frame(kData, 0, 3, "reply") +
                                  end + Frame(kPing, 1, 0, "12345678");
      for (size_t at = 0; at < written.size(); at += piece) {
        const std::string part = written.substr(at, piece);
        frames.Wrote(std::as_bytes(std::span(part)));
      }
      EXPECT_EQ(frames.unfinished_bytes(), kStream + 1) << piece;
      Feed(&frames, Frame(kData, 0, 3, message.substr(500, 300)));
      EXPECT_EQ(frames.unfinished_bytes(), kStream + 1);
      Feed(&frames, Frame(kHeaders, 4, 5, "h"));
      EXPECT_EQ(frames.unfinished_bytes(), 2 * (kStream + 1));
    }
  }
}

// Many streams with many messages each, in pieces of any size and buffers of any length, against a
// count of their own.
TEST(InboundFramesTest, T3TheCountIsThatOfAnOracleWhateverThePieces) {
  std::mt19937 generator(7);
  const auto below = [&](uint32_t end) { return static_cast<uint32_t>(generator() % end); };
  for (int round = 0; round < 50; ++round) {
    InboundFrames frames;
    std::string text = kPreface;
    std::map<uint32_t, std::string> sent;            // of the streams that are open: all data
    std::map<uint32_t, std::vector<size_t>> places;  // of each byte of it in `text`
    std::array<uint32_t, 6> open{};
    uint32_t newest = 0;
    for (int step = 0; step < 200; ++step) {
      uint32_t& stream = open[below(6)];
      if (!sent.contains(stream)) {  // numbers do not come again
        stream = newest += 1 + 2 * below(3);
        sent[stream];
        text += Frame(kHeaders, 4, stream, "");
      }
      switch (below(10)) {
        case 0:
          text += Frame(kReset, 0, stream, "code");
          sent.erase(stream);
          break;
        case 1:
          text += Frame(kData, 1, stream, "");
          sent.erase(stream);
          break;
        case 2:
          text += Frame(kPing, 0, 0, "12345678");
          break;
        default: {
          // The next piece of an endless row of messages of 0 to 99 bytes.
          std::string& data = sent[stream];
          std::string all;
          for (uint32_t i = 0; all.size() < data.size() + 200; ++i)
            all += Message(std::string((stream * 31 + i * 17) % 100, 'x'));
          const std::string piece = all.substr(data.size(), 1 + below(150));
          data += piece;
          const bool padded = below(3) == 0;
          for (size_t i = 0; i < piece.size(); ++i)
            places[stream].push_back(text.size() + (padded ? 10 : 9) + i);
          text += padded ? Padded(0, stream, piece, below(256)) : Frame(kData, 0, stream, piece);
        }
      }
    }
    const bool buffers = round % 2 == 0;
    std::vector<std::pair<size_t, size_t>> begins;  // of buffers: their place and size
    for (size_t at = 0; buffers && at < text.size(); at += 1 + below(300))
      begins.emplace_back(at, 1'000 + below(1'000));
    std::set<size_t> kept;
    uint64_t expected = 0;
    for (const auto& [stream, data] : sent) {
      size_t at = 0;
      for (uint32_t i = 0;; ++i) {
        const size_t bytes = 5 + (stream * 31 + i * 17) % 100;
        if (at + bytes > data.size()) break;
        at += bytes;
      }
      const size_t rest = data.size() - at;
      expected += kStream + (!buffers && rest > 5 ? rest - 5 : 0);
      for (; buffers && at < data.size(); ++at) {
        size_t i = begins.size() - 1;
        while (begins[i].first > places[stream][at]) --i;
        kept.insert(i);
      }
    }
    for (const size_t i : kept) expected += begins[i].second;
    for (size_t at = 0, next = 0; at < text.size();) {
      if (next < begins.size() && begins[next].first == at)
        frames.NextBuffer(begins[next++].second);
      const size_t end = next < begins.size() ? begins[next].first : text.size();
      const size_t count = std::min<size_t>(1 + below(64), end - at);
      Feed(&frames, text.substr(at, count));
      at += count;
    }
    EXPECT_EQ(frames.unfinished_bytes(), expected) << "round " << round;
  }
}

TEST(InboundFramesTest, T3AnyBytesAreTaken) {
  std::mt19937 generator(11);
  for (int round = 0; round < 200; ++round) {
    InboundFrames frames;
    std::string text = round % 2 == 0 ? kPreface : "";
    for (int i = 0; i < 3000; ++i) text.push_back(static_cast<char>(generator() % (round % 5 + 2)));
    Feed(&frames, text);
    EXPECT_LE(frames.unfinished_bytes(), text.size() * (kStream + 1));
  }
}

}  // namespace
}  // namespace prefixd::daemon
