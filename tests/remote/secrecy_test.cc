// What whoever reads the server, without the key, learns of what is stored. (R9)
#include <array>

#include "gtest/gtest.h"

#include "tests/remote/samples.h"

namespace prefixd::remote {
namespace {

constexpr size_t kWindow = 8;  // bytes that are found in a megabyte by chance once in 10^13 times

bool Shows(std::string_view stored, std::span<const std::byte> secret) {
  for (size_t at = 0; at + kWindow <= secret.size(); at += 4) {
    if (stored.find(base::AsText(secret.subspan(at, kWindow))) != std::string_view::npos) {
      return true;
    }
  }
  return false;
}

// A block whose tokens are a pattern, in several stripes; its pages show the tokens, too.
Sample Telling() {
  SampleMaker make(5);
  Sample sample = make.State(SomeKeys(), 2 * kStripePayloadBytes + 1000);
  sample.record.content = {{.start = 2, .length = 3, .digest = base::Sha256({})}};
  for (uint32_t i = 0; i < sample.record.tokens.size(); ++i) sample.record.tokens[i] = 50'000 + i;
  const std::span<const std::byte> tokens = std::as_bytes(std::span(sample.record.tokens));
  std::vector<std::byte>& page = sample.pages[0];
  for (size_t i = 0; i < page.size(); ++i) page[i] = tokens[i % tokens.size()];
  sample.NameIt(SomeKeys());
  return sample;
}

bool ShowsAnything(const Sample& sample, std::string_view stored) {
  const BundleRecord& record = sample.record;
  return Shows(stored, std::as_bytes(std::span(record.tokens))) || Shows(stored, record.space) ||
         Shows(stored, record.content[0].digest) || Shows(stored, record.name);
}

TEST(SecrecyTest, R9NoTokenAndNoSpaceIsReadableInASealedBundle) {
  const Sample sample = Telling();
  const Stored stored = StoredOf(SomeKeys(), Seal::kAes256Gcm, sample);
  EXPECT_FALSE(ShowsAnything(sample, stored.record));
  for (const std::string& stripe : stored.stripes) EXPECT_FALSE(ShowsAnything(sample, stripe));
}

TEST(SecrecyTest, R9AKeySaysNeitherTokensNorSpace) {
  const Sample sample = Telling();
  const std::string key = KeyOf(sample.record.name, sample.record.formats);
  EXPECT_FALSE(ShowsAnything(sample, key));
  for (size_t at = 0; at + 4 <= sample.record.space.size(); ++at) {
    const std::string hex = base::ToHex(std::span(sample.record.space).subspan(at, 4));
    EXPECT_EQ(key.find(hex), std::string::npos);
  }
  // The same block under another key file has nothing of it.
  Sample other = sample;
  other.NameIt(KeysOf("another key file", "team a"));
  EXPECT_NE(KeyOf(other.record.name, "0"), KeyOf(sample.record.name, "0"));
}

// The search above would find them: with checks alone they are there.
TEST(SecrecyTest, WithChecksAloneEverythingIsReadable) {
  const Sample sample = Telling();
  const Stored stored = StoredOf(SomeKeys(), Seal::kChecks, sample);
  EXPECT_TRUE(Shows(stored.record, std::as_bytes(std::span(sample.record.tokens))));
  EXPECT_TRUE(Shows(stored.record, sample.record.space));
  EXPECT_TRUE(Shows(stored.record, sample.record.content[0].digest));
  for (const std::string& stripe : stored.stripes) EXPECT_TRUE(ShowsAnything(sample, stripe));
}

TEST(SecrecyTest, R9WithTheWrongKeyNothingOpens) {
  const Sample sample = Telling();
  const Stored stored = StoredOf(SomeKeys(), Seal::kAes256Gcm, sample);
  for (const TenantKeys& keys : {KeysOf("the bytes of a key filf", "team a"),
                                 KeysOf("the bytes of a key file", "team b"), TenantKeys{}}) {
    EXPECT_EQ(Read(keys, sample.wanted(), stored).outcome, "seal");  // even with the right name
  }
}

}  // namespace
}  // namespace prefixd::remote
