// A daemon that is slow, wrong or breaks off: a shorter match or none, within the deadline, never a
// wrong byte. Played by a service that does what no real prefixd does.
#include <chrono>
#include <functional>

#include "tests/client/played_daemon.h"

namespace prefixd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class BadDaemonTest : public testing::Test {
 protected:
  void SetUp() override {
    space_ = client_.OpenSpace(spec_);
    ASSERT_TRUE(space_.ok()) << space_.status.message;
    ASSERT_TRUE(client_.attached());
  }
  Sequence Begin() { return space_.value().Begin(tokens_, {.deadline = milliseconds(20'000)}); }

  // The sequence falls back to `usable` tokens and goes on from there.
  void ExpectRestartAt(Sequence seq, uint32_t usable) {
    ASSERT_EQ(seq.match().restorable_tokens, 192u);
    EXPECT_EQ(seq.WaitAll(), usable);
    EXPECT_EQ(seq.restorable_tokens(), usable);
    const std::vector<float> row(1024);
    EXPECT_EQ(seq.Append(0, 192, 1, {row.data()}, {row.data()}).code,
              StatusCode::kFailedPrecondition);
    EXPECT_TRUE(seq.block_table(0).empty()) << "not before Restart()";
    EXPECT_EQ(seq.Restart(), usable);
    EXPECT_EQ(seq.block_table(1).size(), usable / kBlock);
    EXPECT_EQ(seq.load_time().count(), 0) << "not a load to learn from";
    AppendTokens(seq, spec_, tokens_, usable, 200);
    for (int layer = 0; layer < 3; ++layer) {
      uint32_t held = 0;
      for (const BlockTableEntry& entry : seq.block_table(layer)) held += entry.tokens;
      EXPECT_EQ(held, 200u);
    }
  }

  TempDirectory directory_;
  PlayedDaemon daemon_{directory_.address()};
  Client client_{{.address = directory_.address()}};
  SpaceSpec spec_ = SmallSpace(MlxAffine(8, 64, Dtype::kF16));
  Result<Space> space_;
  const std::vector<uint32_t> tokens_ = Tokens(200, 1);
};

TEST_F(BadDaemonTest, GoodPagesAreTaken) {
  Sequence seq = Begin();
  EXPECT_EQ(seq.WaitAll(), 192u);
  EXPECT_EQ(seq.block_table(1)[2].units[0], std::byte{1 + 16 + 2});
}

TEST_F(BadDaemonTest, AHangingLookUpEndsAtItsDeadline) {
  daemon_.hang_on_acquire = true;
  const auto asked = steady_clock::now();
  const Sequence seq = space_.value().Begin(tokens_, {.deadline = milliseconds(50)});
  EXPECT_LT(steady_clock::now() - asked, milliseconds(5'000));
  EXPECT_GE(steady_clock::now() - asked, milliseconds(49));
  EXPECT_EQ(seq.restorable_tokens(), 0u);
  EXPECT_EQ(seq.match().status.code, StatusCode::kDeadline);
}

TEST_F(BadDaemonTest, AHangingLoadEndsAtItsDeadline) {
  daemon_.hang_on_fetch = true;
  const auto asked = steady_clock::now();
  Sequence seq = space_.value().Begin(
      tokens_, {.deadline = milliseconds(20'000), .load_deadline = milliseconds(300)});
  EXPECT_EQ(seq.match().restorable_tokens, 192u);
  EXPECT_EQ(seq.WaitAll(), 0u);
  EXPECT_LT(steady_clock::now() - asked, milliseconds(10'000));
}

TEST_F(BadDaemonTest, ASequenceLetGoInTheMiddleOfItsLoadDoesNotWait) {
  daemon_.hang_on_fetch = true;
  const auto asked = steady_clock::now();
  { const Sequence seq = Begin(); }
  EXPECT_LT(steady_clock::now() - asked, milliseconds(5'000));
}

TEST_F(BadDaemonTest, AFlippedByteShortensTheMatchToThePagesBeforeIt) {
  daemon_.change_page = [](v1::PageBytes* page) {
    if (page->group() == 1 && page->first_token() == 128) (*page->mutable_data())[1000] ^= 1;
    return true;
  };
  ExpectRestartAt(Begin(), 128);
}

// Right for other bytes, or right without its seed: neither is the page's.
TEST_F(BadDaemonTest, ASeededSumIsComparedWithItsSeed) {
  for (const bool flipped : {true, false}) {
    daemon_.change_page = [flipped](v1::PageBytes* page) {
      const bool bad = page->group() == 1 && page->first_token() == 128;
      page->set_sum_seed(77 + page->first_token());
      page->set_xxh3(base::Xxh3(base::AsBytes(std::string_view(page->data())),
                                bad && !flipped ? 0 : page->sum_seed()));
      if (bad && flipped) (*page->mutable_data())[1000] ^= 1;
      return true;
    };
    ExpectRestartAt(Begin(), 128);
  }
}

TEST_F(BadDaemonTest, APageBadInTheFirstGroupShortensAllGroupsAlike) {
  daemon_.change_page = [](v1::PageBytes* page) {
    if (page->group() == 0 && page->first_token() == 64) page->set_xxh3(page->xxh3() + 1);
    return true;
  };
  ExpectRestartAt(Begin(), 64);
}

TEST_F(BadDaemonTest, PagesOfWrongShapeAreNotTaken) {
  const std::vector<std::function<void(v1::PageBytes*)>> lies = {
      [](v1::PageBytes* page) { page->set_tokens(63); },
      [](v1::PageBytes* page) { page->set_tokens(0); },
      [](v1::PageBytes* page) { page->set_tokens(~0u); },
      [](v1::PageBytes* page) { page->set_rung(9); },
      [](v1::PageBytes* page) { page->set_page_bytes(page->page_bytes() + 128); },
      [](v1::PageBytes* page) { page->set_offset(128); },
      [](v1::PageBytes* page) { page->set_offset(~uint64_t{0}); },
      [](v1::PageBytes* page) { page->set_first_token(128); },
      [](v1::PageBytes* page) { page->set_group(77); },
      [](v1::PageBytes* page) {
        page->mutable_data()->append(1, 'x');
        page->set_xxh3(base::Xxh3(base::AsBytes(std::string_view(page->data()))));
      },
      [](v1::PageBytes* page) {
        page->clear_data();
        page->set_xxh3(base::Xxh3({}));
      },
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    SCOPED_TRACE(i);
    daemon_.change_page = [&](v1::PageBytes* page) {
      if (page->group() == 1 && page->first_token() == 64) lies[i](page);
      return true;
    };
    ExpectRestartAt(Begin(), 64);
  }
}

TEST_F(BadDaemonTest, AStreamThatBreaksOffLeavesWhatIsWhole) {
  daemon_.change_page = [](v1::PageBytes* page) {
    return page->group() == 0 || page->first_token() < 128;
  };
  ExpectRestartAt(Begin(), 128);
}

TEST_F(BadDaemonTest, AnAnswerThatDoesNotFitTheRequestIsAMiss) {
  const std::vector<std::function<void(v1::AcquireReply*)>> lies = {
      [](v1::AcquireReply* reply) { reply->clear_answers(); },
      [](v1::AcquireReply* reply) { reply->set_epoch(2); },
      [](v1::AcquireReply* reply) { reply->mutable_answers(0)->set_restorable_tokens(201); },
      [](v1::AcquireReply* reply) { reply->mutable_answers(0)->mutable_pages()->RemoveLast(); },
      [](v1::AcquireReply* reply) { reply->mutable_answers(0)->mutable_pages(1)->set_group(7); },
      [](v1::AcquireReply* reply) { reply->mutable_answers(0)->mutable_pages(1)->set_group(0); },
      [](v1::AcquireReply* reply) { reply->mutable_answers(0)->mutable_pages(1)->set_rung(2, 3); },
      [](v1::AcquireReply* reply) { reply->mutable_answers(0)->mutable_pages(1)->clear_rung(); },
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    SCOPED_TRACE(i);
    daemon_.change_answer = lies[i];
    Sequence seq = Begin();
    EXPECT_EQ(seq.WaitAll(), 0u);
    EXPECT_FALSE(seq.match().status.ok());
    AppendTokens(seq, spec_, tokens_, 0, 200);
  }
}

}  // namespace
}  // namespace prefixd
