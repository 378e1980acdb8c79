#include "base/checksum.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "gtest/gtest.h"

#include "base/bytes.h"

namespace prefixd::base {
namespace {

// Published values: NIST's for SHA-256, xxHash's for XXH3 of the empty input.
TEST(ChecksumTest, KnownValues) {
  EXPECT_EQ(ToHex(Sha256(AsBytes("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(ToHex(Sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Xxh3({}), 0x2d06800538d394c2u);
}

TEST(ChecksumTest, TheSeedChangesShortAndLongHashes) {
  for (size_t length : {1u, 16u, 200u, 5000u}) {
    const std::string data(length, 'x');
    EXPECT_NE(Xxh3(AsBytes(data), 0), Xxh3(AsBytes(data), 1)) << length;
  }
}

// Made by xxHash's own portable loop: every width of vectors must give the same.
TEST(ChecksumTest, LongInputsHashAsOnEveryMachine) {
  std::string data(1'000'003, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 131 + (i >> 8));
  EXPECT_EQ(Xxh3(AsBytes(data).first(240)), 0xb80284837259eee4u);
  EXPECT_EQ(Xxh3(AsBytes(data).first(240), 77), 0x684538b6bc8c93c4u);
  EXPECT_EQ(Xxh3(AsBytes(data).first(241)), 0x44dbd3180a664e27u);
  EXPECT_EQ(Xxh3(AsBytes(data).first(241), 77), 0xa0b7839ca3e3ecfcu);
  EXPECT_EQ(Xxh3(AsBytes(data).first(1024)), 0xc6c700c409d40c4bu);
  EXPECT_EQ(Xxh3(AsBytes(data).first(1024), 77), 0xfe708125b5f66ac1u);
  EXPECT_EQ(Xxh3(AsBytes(data).first(4097)), 0x24abb073eb95442bu);
  EXPECT_EQ(Xxh3(AsBytes(data).first(4097), 77), 0x59aeba4630273fcau);
  EXPECT_EQ(Xxh3(AsBytes(data).first(1000003)), 0x5c47cdd322d7c642u);
  EXPECT_EQ(Xxh3(AsBytes(data).first(1000003), 77), 0x3c56d58ea2566263u);
}

TEST(ChecksumTest, ACopyHasTheSumOfItsBytes) {
  std::string data(300'001, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 + (i >> 9));
  for (const size_t length : {size_t{0}, size_t{100}, size_t{65'535}, size_t{65'536},
                              size_t{65'537}, size_t{81'920}, size_t{262'207}, data.size()}) {
    for (const size_t shift : {0u, 1u, 16u}) {  // where streaming stores may go, and where not
      alignas(64) static std::byte copy[300'064];
      std::memset(copy, '#', sizeof(copy));
      const auto bytes = AsBytes(data).first(length);
      EXPECT_EQ(CopyAndXxh3(bytes, copy + shift, 5), Xxh3(bytes, 5)) << length << " " << shift;
      EXPECT_EQ(std::memcmp(copy + shift, bytes.data(), length), 0) << length << " " << shift;
      EXPECT_EQ(copy[shift + length], std::byte{'#'}) << length << " " << shift;
      EXPECT_TRUE(shift == 0 || copy[shift - 1] == std::byte{'#'}) << length << " " << shift;
    }
  }
}

TEST(ChecksumTest, AStreamCopiesWhatItSums) {
  std::mt19937_64 random(4);
  std::vector<std::byte> bytes(200'001);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (const size_t length : {size_t{0}, size_t{1}, size_t{65'536}, bytes.size()}) {
    std::vector<std::byte> copy(length + 1, std::byte{'#'});
    Xxh3Stream stream, second;
    stream.Begin(9);
    const size_t half = length / 2;
    const std::span<const std::byte> whole(bytes.data(), length);
    const std::span<const std::byte> first[] = {whole.first(half / 3),
                                                whole.subspan(half / 3, half - half / 3)};
    stream.CopyAndUpdate(first, copy.data(), &second);
    EXPECT_EQ(stream.Sum(), Xxh3(whole.first(half), 9)) << length;
    EXPECT_EQ(second.Sum(), Xxh3(whole.first(half))) << length;
    const std::span<const std::byte> rest[] = {whole.subspan(half)};
    stream.CopyAndUpdate(rest, copy.data() + half);
    EXPECT_EQ(stream.Finish(), Xxh3(whole, 9)) << length;
    EXPECT_TRUE(std::equal(copy.begin(), copy.end() - 1, bytes.begin())) << length;
    EXPECT_EQ(copy.back(), std::byte{'#'}) << length;
  }
}

TEST(ChecksumTest, AStreamInPiecesIsTheWhole) {
  const std::string data(100'000, 'q');
  Sha256Stream stream;
  for (size_t at = 0; at < data.size(); at += 777) {
    stream.Update(AsBytes(std::string_view(data).substr(at, 777)));
  }
  EXPECT_EQ(stream.Finish(), Sha256(AsBytes(data)));
  Xxh3Stream xxh3;
  const auto sum_of = [&](size_t length) {
    for (size_t at = 0; at < length; at += 777) {
      xxh3.Update(AsBytes(std::string_view(data).substr(at, std::min<size_t>(777, length - at))));
    }
    return xxh3.Finish();  // and begins anew
  };
  for (const size_t length : {data.size(), size_t{100}, size_t{0}}) {
    const auto bytes = AsBytes(data).first(length);
    EXPECT_EQ(sum_of(length), Xxh3(bytes));
    for (const uint64_t seed : {uint64_t{0}, uint64_t{77}}) {
      xxh3.Begin(seed);
      EXPECT_EQ(sum_of(length), Xxh3(bytes, seed));
    }
    EXPECT_EQ(sum_of(length), Xxh3(bytes));
  }
}

}  // namespace
}  // namespace prefixd::base
