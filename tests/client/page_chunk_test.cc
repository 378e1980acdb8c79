// A FetchChunk is read in every form that protobuf allows, and nothing else is taken for one.
#include "client/cpp/page_chunk.h"

#include <gtest/gtest.h>

#include <string>

#include "base/bytes.h"

namespace prefixd::client {
namespace {

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

v1::FetchChunk SomePage() {
  v1::FetchChunk chunk;
  v1::PageBytes* const page = chunk.mutable_page();
  page->set_group(3);
  page->set_tokens(16);
  page->set_page_bytes(5);
  page->set_xxh3(77);
  page->set_data("abcde");
  return chunk;
}

std::string DataOf(const FetchedChunk& chunk) {
  std::string data;
  for (const auto run : chunk.runs()) data += base::AsText(run);
  return data;
}

TEST(FetchedChunkTest, APageIsReadInTheUsualFormAndInAnyOther) {
  const std::string usual = SomePage().SerializeAsString();
  v1::FetchChunk group;
  group.mutable_page()->set_group(3);
  v1::FetchChunk rest = SomePage();
  rest.mutable_page()->clear_group();
  // Two parts of one message: protobuf merges them.
  const std::string unusual = rest.SerializeAsString() + group.SerializeAsString();
  FetchedChunk chunk;
  for (const std::string& bytes : {usual, unusual, usual}) {
    ASSERT_TRUE(chunk.Parse(BufferOf(bytes)));
    ASSERT_TRUE(chunk.is_page());
    EXPECT_EQ(chunk.piece(), wire::HeaderOf(SomePage().page()));
    EXPECT_EQ(DataOf(chunk), "abcde");
  }
}

TEST(FetchedChunkTest, AGroupThatIsReadyIsNoPage) {
  v1::FetchChunk ready;
  ready.mutable_ready()->set_group(2);
  ready.mutable_ready()->set_usable_tokens(48);
  FetchedChunk chunk;
  ASSERT_TRUE(chunk.Parse(BufferOf(SomePage().SerializeAsString())));
  ASSERT_TRUE(chunk.Parse(BufferOf(ready.SerializeAsString())));
  EXPECT_FALSE(chunk.is_page());
  EXPECT_EQ(chunk.ready().group(), 2u);
  EXPECT_EQ(chunk.ready().usable_tokens(), 48u);
}

TEST(FetchedChunkTest, OtherBytesAreRefused) {
  const std::string page = SomePage().SerializeAsString();
  FetchedChunk chunk;
  EXPECT_FALSE(chunk.Parse(BufferOf("nonsense")));
  EXPECT_FALSE(chunk.Parse(BufferOf(page.substr(0, page.size() - 1))));
  EXPECT_FALSE(chunk.Parse(BufferOf(""))) << "neither a page nor ready";
}

}  // namespace
}  // namespace prefixd::client
