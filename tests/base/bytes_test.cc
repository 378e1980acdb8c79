#include "base/bytes.h"

#include <array>
#include <string>

#include "gtest/gtest.h"

namespace prefixd::base {
namespace {

TEST(BytesTest, WriterIsLittleEndianAndFramed) {
  ByteWriter out;
  out.Fixed(uint16_t{0x0102});
  out.Fixed(uint32_t{0x03040506});
  out.Framed("ab");
  EXPECT_EQ(ToHex(AsBytes(out.bytes())),
            "02010605040302000000"
            "6162");
}

TEST(BytesTest, ReaderGivesBackWhatWriterWrote) {
  ByteWriter out;
  out.Fixed(uint8_t{7});
  out.Fixed(-1.5);
  out.Framed("");
  out.Framed("text");
  out.Raw(AsBytes("raw"));
  ByteReader in(AsBytes(out.bytes()));
  EXPECT_EQ(in.Fixed<uint8_t>(), 7);
  EXPECT_EQ(in.Fixed<double>(), -1.5);
  EXPECT_EQ(in.Framed(), "");
  EXPECT_EQ(in.Framed(), "text");
  EXPECT_EQ(AsText(in.Raw(3)), "raw");
  EXPECT_EQ(in.remaining(), 0u);
  EXPECT_TRUE(in.ok());
}

TEST(BytesTest, AReadPastTheEndGivesZerosAndStaysFailed) {
  const std::string two = "\xFF\xFF";
  ByteReader in(AsBytes(two));
  EXPECT_EQ(in.Fixed<uint32_t>(), 0u);
  EXPECT_FALSE(in.ok());
  EXPECT_EQ(in.Fixed<uint8_t>(), 0);  // although two bytes had been left
  EXPECT_EQ(in.remaining(), 0u);
  EXPECT_FALSE(in.ok());
}

TEST(BytesTest, AFrameLongerThanTheRestIsAFailureNotAnAllocation) {
  ByteWriter out;
  out.Fixed(uint32_t{0xFFFFFFFF});
  ByteReader in(AsBytes(out.bytes()));
  EXPECT_EQ(in.Framed(), "");
  EXPECT_FALSE(in.ok());
}

TEST(BytesTest, HexGoesBothWays) {
  const std::array<std::byte, 3> bytes = {std::byte{0x00}, std::byte{0xAF}, std::byte{0x7E}};
  EXPECT_EQ(ToHex(bytes), "00af7e");
  std::array<std::byte, 3> read{};
  EXPECT_TRUE(FromHex("00aF7E", read));
  EXPECT_EQ(read, bytes);
}

TEST(BytesTest, HexOfWrongLengthOrDigitsIsRefused) {
  std::array<std::byte, 2> out{};
  for (const char* hex : {"", "0", "000", "00000", "00g0", "0x00", " 000"}) {
    EXPECT_FALSE(FromHex(hex, out)) << hex;
  }
}

TEST(BytesTest, AlignUpRoundsToTheNextMultiple) {
  EXPECT_EQ(AlignUp(0, 128), 0u);
  EXPECT_EQ(AlignUp(1, 128), 128u);
  EXPECT_EQ(AlignUp(128, 128), 128u);
  EXPECT_EQ(AlignUp(129, 128), 256u);
}

}  // namespace
}  // namespace prefixd::base
