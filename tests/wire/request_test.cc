// A5: lists, lengths and numbers of requests.
#include "wire/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "wire/admin.h"
#include "wire/limits.h"
#include "wire/page.h"
#include "wire/sequence.h"

namespace prefixd::wire {
namespace {

using ::testing::HasSubstr;

void ExpectRefused(const absl::Status& status, const std::string& says) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << says;
  EXPECT_THAT(std::string(status.message()), HasSubstr(says));
}

template <typename Message>
absl::Status Read(const Message& request) {
  return FromProto(request).status();
}
absl::Status Read(v1::AcquireRequest request) {
  return TakeItems(&request, uint64_t{64} << 20).status();
}

v1::Sequence SomeSequence(int tokens) {
  v1::Sequence proto;
  proto.set_space(3);
  proto.mutable_tokens()->Resize(tokens, 5);
  return proto;
}

TEST(RequestTest, SequencesComeBackAsTheyWent) {
  const std::vector<block::Token> tokens = {1, 2, 0xffffffffu, 4, 5, 6};
  std::vector<block::ContentKey> content = {{.start = 1, .item_offset = 7, .length = 2},
                                            {.start = 4, .length = 1}};
  content[0].digest[5] = std::byte{9};
  v1::Sequence proto;
  ToProto({11}, {tokens, content}, &proto);
  const block::Request back = *FromProto(proto);
  EXPECT_EQ(back.space.value, 11u);
  EXPECT_EQ(back.tokens, tokens);
  EXPECT_EQ(back.content, content);
}

TEST(RequestTest, ANoteThatAModelIsNotSharedNamesIt) {
  v1::NotSharedRequest request;
  ExpectRefused(Read(request), "not_shared: model is empty");
  request.set_model(std::string(1024, 'm'));
  EXPECT_TRUE(Read(request).ok()) << "an empty reason takes the note back";
  request.set_reason(std::string(kMaxReasonBytes, 'r'));
  EXPECT_TRUE(Read(request).ok());
  request.mutable_reason()->push_back('r');
  ExpectRefused(Read(request), "not_shared: reason has 1025 bytes, at most 1024");
  request.mutable_model()->push_back('m');
  ExpectRefused(Read(request), "not_shared: model has 1025 bytes, at most 1024");
}

TEST(RequestTest, TokenListsHaveOneToTwoMillionTokens) {
  ExpectRefused(FromProto(SomeSequence(0)).status(), "0 tokens");
  EXPECT_TRUE(FromProto(SomeSequence(1)).ok());
  EXPECT_TRUE(FromProto(SomeSequence(kMaxTokens)).ok());
  ExpectRefused(FromProto(SomeSequence(kMaxTokens + 1)).status(),
                "has 2097153 entries, at most 2097152");
}

TEST(RequestTest, ContentNeedsADigestAndAPlaceInsideTheTokens) {
  v1::Sequence proto = SomeSequence(4);
  proto.add_content()->set_length(2);
  ExpectRefused(FromProto(proto).status(), "content[0].digest has 0 bytes, wants 32");
  proto.mutable_content(0)->set_digest(std::string(32, 'd'));
  EXPECT_TRUE(FromProto(proto).ok());
  proto.mutable_content(0)->set_start(3);
  EXPECT_EQ(FromProto(proto).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RequestTest, ListsOfARequestAreBounded) {
  v1::AcquireRequest acquire;
  for (uint32_t i = 0; i < kMaxItems; ++i)
    *acquire.add_items()->mutable_sequence() = SomeSequence(1);
  EXPECT_TRUE(Read(acquire).ok());
  acquire.add_items();
  ExpectRefused(Read(acquire), "items has 17 entries, at most 16");
  acquire.mutable_items()->Clear();
  acquire.add_items()->set_request_id(std::string(257, 'r'));
  ExpectRefused(Read(acquire), "request_id has 257 bytes, at most 256");
  acquire.mutable_items(0)->clear_request_id();
  acquire.mutable_items(0)->mutable_groups()->Resize(65, 0);
  ExpectRefused(Read(acquire), "groups has 65");
  acquire.mutable_items(0)->clear_groups();
  acquire.mutable_items(0)->mutable_readable()->Resize(65, 0);
  ExpectRefused(Read(acquire), "readable has 65");
  v1::ReserveRequest reserve;
  reserve.mutable_writable()->Resize(65, 0);
  ExpectRefused(Read(reserve), "writable has 65");
  reserve.mutable_groups()->Resize(65, 0);
  ExpectRefused(Read(reserve), "groups has 65");
  v1::FetchRequest fetch;
  fetch.mutable_groups()->Resize(65, 0);
  ExpectRefused(Read(fetch), "groups has 65");
  v1::CommitRequest commit;
  commit.mutable_ends()->Resize(kMaxEnds + 1, 0);
  ExpectRefused(Read(commit), "commit: ends has 4097 entries, at most 4096");
}

TEST(RequestTest, APlanNamesAtMost4096TurnEnds) {
  v1::ReserveRequest reserve;
  *reserve.mutable_sequence() = SomeSequence(1);
  reserve.mutable_turn_ends()->Resize(kMaxEnds, 1);
  EXPECT_TRUE(Read(reserve).ok());
  reserve.add_turn_ends(1);
  ExpectRefused(Read(reserve), "reserve: turn_ends has 4097 entries, at most 4096");
  v1::AcquireRequest acquire;
  acquire.add_items()->mutable_turn_ends()->Resize(kMaxEnds + 1, 1);
  ExpectRefused(Read(acquire), "acquire: turn_ends has 4097 entries, at most 4096");
}

TEST(RequestTest, ARateThatIsNoRateIsRefused) {
  for (const double rate :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    v1::ReleaseRequest request;
    request.add_release()->set_prefill_tokens_per_s(rate);
    ExpectRefused(Read(request.release()), "release: prefill_tokens_per_s");
  }
}

TEST(RequestTest, AttachSpeaksProtocolOneAndHasAShortName) {
  v1::AttachRequest request;
  ExpectRefused(Check(request), "protocol is 0");
  request.set_protocol(kProtocol);
  request.set_worker(std::string(128, 'w'));
  EXPECT_TRUE(Check(request).ok());
  request.set_worker(std::string(129, 'w'));
  ExpectRefused(Check(request), "worker has 129 bytes, at most 128");
}

TEST(RequestTest, AResumeNamesASessionByItsWholeKey) {
  v1::AttachRequest request;
  request.set_protocol(kProtocol);
  for (const size_t bytes : {0u, 16u}) {
    request.set_resume(std::string(bytes, 'k'));
    EXPECT_TRUE(Check(request).ok()) << bytes;
  }
  request.set_resume(std::string(15, 'k'));
  ExpectRefused(Check(request), "resume has 15 bytes, wants 16 or none");
}

TEST(RequestTest, APlanOfAnItemHasBoundedListsAndARealRate) {
  v1::AcquireRequest request;
  request.add_items()->mutable_writable()->Resize(65, 0);
  ExpectRefused(Read(request), "writable has 65");
  request.mutable_items(0)->clear_writable();
  request.mutable_items(0)->set_prefill_tokens_per_s(-1);
  ExpectRefused(Read(request), "acquire: prefill_tokens_per_s is -1");
  v1::FetchRequest fetch;
  fetch.mutable_groups()->Resize(65, 0);
  ExpectRefused(Read(fetch), "fetch: groups has 65");
}

TEST(RequestTest, StagedPagesAreColumnsOfOneLengthAtAlignedPlaces) {
  v1::CommitRequest request;
  v1::StagedPages* staged = request.add_staged();
  for (const uint64_t offset : {0u, 128u}) {
    staged->add_first_token(0);
    staged->add_rung(0);
    staged->add_offset(offset);
  }
  EXPECT_TRUE(Read(request).ok());
  staged->set_offset(1, 129);
  ExpectRefused(Read(request), "offset 129 is not a multiple of 128");
  staged->mutable_offset()->RemoveLast();
  ExpectRefused(Read(request), "columns of 2 first_token, 2 rung and 1 offset");
  staged->Clear();
  staged->set_group(64);
  ExpectRefused(Read(request), "staged group 64 (below 64)");
  request.clear_staged();
  for (int i = 0; i < 65; ++i) request.add_staged();
  ExpectRefused(Read(request), "staged has 65");
}

TEST(RequestTest, PiecesHaveAByteToAMebibyteInsideTheirPage) {
  v1::PageBytes page;
  page.set_page_bytes(kMaxPieceBytes + 10);
  ExpectRefused(CheckPiece(HeaderOf(page)), "0 bytes");
  page.set_data(std::string(kMaxPieceBytes + 1, 'p'));
  ExpectRefused(CheckPiece(HeaderOf(page)), "1048577 bytes, at most 1048576");
  page.set_data(std::string(kMaxPieceBytes, 'p'));
  page.set_offset(10);
  EXPECT_TRUE(CheckPiece(HeaderOf(page)).ok());
  page.set_offset(11);
  ExpectRefused(CheckPiece(HeaderOf(page)), "reaches past page_bytes");
  page.set_offset(std::numeric_limits<uint64_t>::max() - 5);
  ExpectRefused(CheckPiece(HeaderOf(page)), "reaches past page_bytes");
}

TEST(RequestTest, ASpaceIdIsEmptyOrThirtyTwoBytes) {
  block::SpaceId id{};
  bool given = true;
  EXPECT_TRUE(ReadSpaceId("", &id, &given).ok());
  EXPECT_FALSE(given);
  ExpectRefused(ReadSpaceId("abc", &id, &given), "space_id has 3 bytes, wants 32");
  EXPECT_TRUE(ReadSpaceId(std::string(32, 'a'), &id, &given).ok());
  EXPECT_TRUE(given);
}

}  // namespace
}  // namespace prefixd::wire
