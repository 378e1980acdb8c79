#include "remote/note.h"

#include "gtest/gtest.h"

#include "base/bytes.h"
#include "tests/remote/samples.h"

namespace prefixd::remote {
namespace {

constexpr ChainName kName{std::byte{1}};
const std::string kText = "what other hosts may read";

std::optional<std::string> Opened(const std::string& note, const ChainName& name = kName,
                                  Seal least = Seal::kAes256Gcm,
                                  const TenantKeys& keys = SomeKeys()) {
  return OpenNote(keys, least, name, base::AsBytes(note));
}

TEST(NoteTest, WhoHasTheKeyAndTheNameReadsIt) {
  const std::string note = SealNote(SomeKeys(), Seal::kAes256Gcm, kName, kText);
  EXPECT_EQ(Opened(note), kText);
  EXPECT_EQ(note.find("hosts"), std::string::npos);
  EXPECT_NE(note, SealNote(SomeKeys(), Seal::kAes256Gcm, kName, kText)) << "each has its own salt";
}

TEST(NoteTest, R5WhatWasAlteredIsNone) {
  for (const Seal seal : {Seal::kAes256Gcm, Seal::kChecks}) {
    const std::string note = SealNote(SomeKeys(), seal, kName, kText);
    for (size_t at = 0; at < note.size(); ++at) {
      std::string altered = note;
      altered[at] = static_cast<char>(altered[at] ^ 1);
      EXPECT_EQ(Opened(altered, kName, seal), std::nullopt) << at;
      EXPECT_EQ(Opened(note.substr(0, at), kName, seal), std::nullopt) << at;
    }
    EXPECT_EQ(Opened(note + "x", kName, seal), std::nullopt);
  }
}

TEST(NoteTest, R9AnotherKeyOrNameOpensNone) {
  const std::string note = SealNote(SomeKeys(), Seal::kAes256Gcm, kName, kText);
  EXPECT_EQ(Opened(note, ChainName{std::byte{2}}), std::nullopt);
  EXPECT_EQ(Opened(note, kName, Seal::kAes256Gcm, KeysOf("another key file", "team a")),
            std::nullopt);
}

TEST(NoteTest, WhatIsNotSealedIsTakenWhereNothingIs) {
  const std::string note = SealNote(SomeKeys(), Seal::kChecks, kName, kText);
  EXPECT_EQ(Opened(note, kName, Seal::kChecks), kText);
  EXPECT_EQ(Opened(note), std::nullopt);
}

}  // namespace
}  // namespace prefixd::remote
