// T3: what a message takes is known before it is parsed, and never taken for less than it is.
#include "wire/unfolded.h"

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::wire {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kAny = ~uint64_t{0};

absl::StatusOr<uint64_t> Unfolded(const google::protobuf::Descriptor& type,
                                  const std::string& bytes, uint64_t most = kAny, int slice = -1) {
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()),
                                                slice);
  return UnfoldedBytes(type, &stream, most);
}

template <typename Proto>
void ExpectNotLess(const std::string& bytes) {
  Proto proto;
  ASSERT_TRUE(proto.ParseFromString(bytes));
  for (const int slice : {-1, 7}) {
    const absl::StatusOr<uint64_t> unfolded = Unfolded(*Proto::descriptor(), bytes, kAny, slice);
    ASSERT_TRUE(unfolded.ok()) << unfolded.status();
    EXPECT_GE(*unfolded, proto.SpaceUsedLong()) << proto.GetTypeName() << ", " << bytes.size();
    EXPECT_LE(*unfolded, 8 * proto.SpaceUsedLong() + 1024);
  }
}

std::string Repeated(const std::string& piece, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += piece;
  return bytes;
}

TEST(UnfoldedTest, T3NoMessageTakesMoreThanIsTold) {
  std::mt19937 generator(20261124);
  const auto below = [&](uint32_t end) { return static_cast<uint32_t>(generator() % end); };
  for (int round = 0; round < 300; ++round) {
    v1::AcquireRequest acquire;
    acquire.set_session(below(~0u));
    for (uint32_t i = below(17); i > 0; --i) {
      v1::AcquireRequest::Item* const item = acquire.add_items();
      for (uint32_t t = below(300); t > 0; --t) item->mutable_sequence()->add_tokens(below(~0u));
      for (uint32_t k = below(20); k > 0; --k) {
        v1::ContentKey* const key = item->mutable_sequence()->add_content();
        key->set_start(below(1000));
        key->set_digest(std::string(below(40), 'd'));
      }
      for (uint32_t g = below(9); g > 0; --g) item->add_groups(below(300));
      for (uint32_t g = below(9); g > 0; --g) item->add_readable(below(~0u));
      for (uint32_t g = below(90); g > 0; --g) item->add_turn_ends(below(100));
      item->set_request_id(std::string(below(100), 'r'));
    }
    for (uint32_t i = below(30); i > 0; --i) acquire.add_release()->set_lease(below(~0u));
    ExpectNotLess<v1::AcquireRequest>(acquire.SerializeAsString());
  }
}

TEST(UnfoldedTest, T3TheLargestOfTheFewestBytesIsNotTakenForLess) {
  for (const int count : {1, 100, 100'000}) {
    ExpectNotLess<v1::AcquireRequest>(Repeated(std::string("\x12\0", 2), count));  // items
    ExpectNotLess<v1::AcquireRequest>(Repeated(std::string("\x1a\0", 2), count));  // releases
    ExpectNotLess<v1::CommitRequest>(Repeated(std::string("\x78\1", 2), count));   // unknown number
    ExpectNotLess<v1::CommitRequest>(Repeated(std::string("\x7a\0", 2), count));   // unknown text
    ExpectNotLess<v1::FetchRequest>(
        Repeated(std::string("\x18\1", 2), count));  // groups, one by one
    ExpectNotLess<v1::CommitRequest>("\x7b" + Repeated(std::string("\x78\1", 2), count) + "\x7c");
    v1::Sequence tokens;
    tokens.mutable_tokens()->Resize(count, 1);
    ExpectNotLess<v1::Sequence>(tokens.SerializeAsString());
    v1::FetchRequest fetch;
    fetch.mutable_groups()->Resize(count, 1);
    ExpectNotLess<v1::FetchRequest>(fetch.SerializeAsString());
  }
}

TEST(UnfoldedTest, T3AWalkEndsWhereItIsTooMuchAndWhereTheMessageIsBroken) {
  const google::protobuf::Descriptor& type = *v1::AcquireRequest::descriptor();
  const absl::Status much =
      Unfolded(type, Repeated(std::string("\x12\0", 2), 1000), 10'000).status();
  EXPECT_TRUE(absl::IsInvalidArgument(much));
  EXPECT_THAT(std::string(much.message()), HasSubstr("takes more than 10000 bytes of memory"));
  v1::AcquireRequest request;
  request.add_items()->mutable_sequence()->mutable_tokens()->Resize(100, 7);
  const std::string whole = request.SerializeAsString();
  for (size_t cut = 1; cut < whole.size(); ++cut) {
    const absl::Status broken = Unfolded(type, whole.substr(0, cut)).status();
    EXPECT_FALSE(broken.ok()) << cut;
  }
  EXPECT_THAT(std::string(Unfolded(type, "\xff\xff\xff\xff garbage").status().message()),
              HasSubstr("is no AcquireRequest"));
}

}  // namespace
}  // namespace prefixd::wire
