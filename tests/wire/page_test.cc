// The bulk path's hand-made messages are those of the generated classes, byte for byte.
#include <gtest/gtest.h>

#include <array>

#include "base/bytes.h"
#include "tests/wire/random_values.h"
#include "wire/limits.h"
#include "wire/page_message.h"

namespace prefixd::wire {
namespace {

PieceHeader RandomHeader(testing::RandomValues* random) {
  const auto number = [random] { return random->Coin() ? random->Number() : 0; };
  return {.group = number(),
          .first_token = number(),
          .tokens = number(),
          .rung = number(),
          .page_bytes = random->Coin() ? random->Wide() : number(),
          .offset = random->Coin() ? random->Wide() : number(),
          .xxh3 = random->Coin() ? random->Wide() : 0,
          .sum_seed = random->Coin() ? random->Wide() : 0,
          .data_bytes = 1 + random->Below(random->Coin() ? 300 : kMaxPieceBytes)};
}

std::string MessageOf(const PieceHeader& header, const std::string& data) {
  std::array<std::byte, kMaxPieceHeaderBytes> bytes;
  const size_t size = WritePieceHeader(header, bytes.data());
  EXPECT_LE(size, bytes.size());
  return std::string(reinterpret_cast<const char*>(bytes.data()), size) + data;
}

std::optional<ParsedPiece> Read(const std::string& message) {
  return ReadPieceHeader(
      base::AsBytes(message).first(std::min(message.size(), kMaxPieceHeaderBytes)), message.size());
}

v1::FetchChunk ChunkOf(const PieceHeader& header, const std::string& data) {
  v1::FetchChunk chunk;
  v1::PageBytes* page = chunk.mutable_page();
  page->set_group(header.group);
  page->set_first_token(header.first_token);
  page->set_tokens(header.tokens);
  page->set_rung(header.rung);
  page->set_page_bytes(header.page_bytes);
  page->set_offset(header.offset);
  page->set_xxh3(header.xxh3);
  page->set_sum_seed(header.sum_seed);
  page->set_data(data);
  return chunk;
}

TEST(PageTest, WhatIsWrittenByHandIsWhatProtobufWrites) {
  testing::RandomValues random(21);
  for (int i = 0; i < 3000; ++i) {
    const PieceHeader header = RandomHeader(&random);
    const std::string data(header.data_bytes, static_cast<char>(i));
    const std::string message = MessageOf(header, data);
    v1::FetchChunk chunk;
    ASSERT_TRUE(chunk.ParseFromString(message));
    EXPECT_EQ(HeaderOf(chunk.page()), header);
    EXPECT_EQ(chunk.page().data(), data);
    EXPECT_EQ(message, ChunkOf(header, data).SerializeAsString());
    v1::PutChunk put;  // the same bytes in the other direction
    ASSERT_TRUE(put.ParseFromString(message));
    EXPECT_EQ(HeaderOf(put.page()), header);
  }
}

TEST(PageTest, TheLongestHeaderHasRoom) {
  constexpr uint32_t kNumber = ~uint32_t{0};
  constexpr uint64_t kWide = ~uint64_t{0};
  const PieceHeader header{kNumber, kNumber, kNumber, kNumber,       kWide,
                           kWide,   kWide,   kWide,   kMaxPieceBytes};
  const std::string data(kMaxPieceBytes, 'd');
  EXPECT_EQ(MessageOf(header, data), ChunkOf(header, data).SerializeAsString());
}

TEST(PageTest, WhatProtobufWritesIsReadInPlace) {
  testing::RandomValues random(22);
  for (int i = 0; i < 3000; ++i) {
    const PieceHeader header = RandomHeader(&random);
    const std::string data(header.data_bytes, static_cast<char>(i));
    const std::string message = ChunkOf(header, data).SerializeAsString();
    const std::optional<ParsedPiece> parsed = Read(message);
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(parsed->header, header);
    EXPECT_EQ(message.substr(parsed->header_bytes), data);
  }
}

TEST(PageTest, OtherMessagesAreLeftToProtobuf) {
  v1::FetchChunk ready;
  ready.mutable_ready()->set_group(3);
  EXPECT_FALSE(Read(ready.SerializeAsString()).has_value());
  v1::PutChunk header;
  header.mutable_header()->set_session(77);
  EXPECT_FALSE(Read(header.SerializeAsString()).has_value());
  EXPECT_FALSE(Read("").has_value());
  v1::PutChunk empty;
  empty.mutable_page();
  EXPECT_FALSE(Read(empty.SerializeAsString()).has_value());
  const std::string page = ChunkOf({.tokens = 1, .page_bytes = 5}, "abcde").SerializeAsString();
  EXPECT_TRUE(Read(page).has_value());
  EXPECT_FALSE(Read(page + page).has_value());  // merges, as protobuf does
  EXPECT_FALSE(Read(page.substr(0, page.size() - 1)).has_value());
  EXPECT_FALSE(Read(page + "x").has_value());
}

// Bytes flipped anywhere: what is read in place is what protobuf reads.
TEST(PageTest, WhatIsReadInPlaceProtobufReadsTheSame) {
  testing::RandomValues random(23);
  int read = 0;
  for (int i = 0; i < 50'000; ++i) {
    const PieceHeader header = RandomHeader(&random);
    std::string message =
        ChunkOf(header, std::string(1 + header.data_bytes % 100, 'd')).SerializeAsString();
    for (uint32_t flips = random.Below(3); flips > 0; --flips)
      message[random.Below(static_cast<uint32_t>(message.size()))] =
          static_cast<char>(random.Below(256));
    if (random.Coin()) message.resize(random.Below(static_cast<uint32_t>(message.size()) + 1));
    const std::optional<ParsedPiece> parsed = Read(message);
    if (!parsed.has_value()) continue;
    ++read;
    v1::FetchChunk chunk;
    ASSERT_TRUE(chunk.ParseFromString(message));
    EXPECT_EQ(parsed->header, HeaderOf(chunk.page()));
    EXPECT_EQ(message.substr(parsed->header_bytes), chunk.page().data());
  }
  EXPECT_GT(read, 10'000);
}

TEST(PageTest, AMessageIsReadWhereverItIsCut) {
  testing::RandomValues random(24);
  for (int i = 0; i < 500; ++i) {
    PieceHeader header = RandomHeader(&random);
    header.data_bytes = 1 + random.Below(200);
    const std::string data(header.data_bytes, static_cast<char>(i));
    const std::string message = MessageOf(header, data);
    std::vector<grpc::Slice> slices;
    for (size_t at = 0, bytes = 0; at < message.size(); at += bytes) {
      bytes = 1 + random.Below(static_cast<uint32_t>(message.size() - at));
      slices.emplace_back(message.substr(at, bytes));
    }
    const PageMessage read(grpc::ByteBuffer(slices.data(), slices.size()));
    const std::optional<ParsedPiece> parsed = read.Header();
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(parsed->header, header);
    PageMessage::Runs runs;
    read.RunsFrom(parsed->header_bytes, &runs);
    std::string joined;
    for (const auto run : runs) joined += base::AsText(run);
    EXPECT_EQ(joined, data);
  }
}

TEST(PageTest, BorrowedDataIsHeldUntilItsMessageGoes) {
  const std::string page(5000, 'p');
  auto hold = std::make_shared<int>(1);
  const PieceHeader piece{.group = 1, .tokens = 16, .page_bytes = 5000, .data_bytes = 5000};
  const std::byte* const data = base::AsBytes(page).data();
  std::vector<grpc::Slice> slices;
  {
    const grpc::ByteBuffer message = MakePageMessage(piece, data, hold);
    EXPECT_EQ(hold.use_count(), 2);
    ASSERT_TRUE(message.Dump(&slices).ok());
    ASSERT_EQ(slices.size(), 2u);
    EXPECT_EQ(reinterpret_cast<const char*>(slices[1].begin()), page.data());  // not a copy
    slices.clear();
  }
  EXPECT_EQ(hold.use_count(), 1);
  ASSERT_TRUE(MakePageMessage(piece, data, nullptr).Dump(&slices).ok());
  EXPECT_NE(reinterpret_cast<const char*>(slices[1].begin()), page.data());
}

}  // namespace
}  // namespace prefixd::wire
