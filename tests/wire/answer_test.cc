#include "wire/answer.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/wire/random_values.h"

namespace prefixd::wire {
namespace {

constexpr uint32_t kBlockTokens = 16;

void ExpectEqual(const block::MatchAnswer& a, const block::MatchAnswer& b) {
  EXPECT_EQ(a.matched_tokens, b.matched_tokens);
  EXPECT_EQ(a.restorable_tokens, b.restorable_tokens);
  EXPECT_EQ(a.pending_tokens, b.pending_tokens);
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.ended_by, b.ended_by);
  EXPECT_EQ(a.diverged_sequences, b.diverged_sequences);
  EXPECT_EQ(a.shortened_by, b.shortened_by);
  EXPECT_EQ(a.ram_bytes, b.ram_bytes);
  EXPECT_EQ(a.ssd_bytes, b.ssd_bytes);
  EXPECT_EQ(a.load_us, b.load_us);
}

std::vector<block::LeasedPage> RandomPages(testing::RandomValues* random, uint32_t restorable) {
  std::vector<block::LeasedPage> pages;
  for (uint32_t group = 0; group < 3; ++group) {
    for (uint32_t first = 0; first < restorable; first += kBlockTokens) {
      const uint32_t tokens = std::min(kBlockTokens, restorable - first);
      pages.push_back({.group = group,
                       .rung = random->Below(4),
                       .first_token = first,
                       .page_tokens = tokens + random->Below(kBlockTokens - tokens + 1),
                       .tokens = tokens});
    }
  }
  return pages;
}

TEST(AnswerTest, AnswersComeBackAsTheyWent) {
  testing::RandomValues random(5);
  for (int i = 0; i < 500; ++i) {
    const uint32_t restorable = random.Below(200);
    const block::MatchAnswer match = random.Match(restorable);
    const std::vector<block::LeasedPage> pages = RandomPages(&random, restorable);
    v1::Answer proto;
    ToProto(block::LeaseId{random.Wide()}, match, pages, &proto);
    const absl::StatusOr<Answer> back = FromProto(proto, kBlockTokens);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->lease.value, proto.lease());
    ExpectEqual(back->match, match);
    ASSERT_EQ(back->pages.size(), pages.size());
    for (size_t p = 0; p < pages.size(); ++p) {
      EXPECT_EQ(back->pages[p].group, pages[p].group);
      EXPECT_EQ(back->pages[p].rung, pages[p].rung);
      EXPECT_EQ(back->pages[p].first_token, pages[p].first_token);
      EXPECT_EQ(back->pages[p].page_tokens, pages[p].page_tokens);
      EXPECT_EQ(back->pages[p].tokens, pages[p].tokens);
    }
  }
}

TEST(AnswerTest, ColumnsThatBreakTheContractAreDataLoss) {
  const std::vector<std::function<void(v1::Answer*)>> spoils = {
      [](auto* a) { a->mutable_pages(0)->add_rung(0); },
      [](auto* a) { a->mutable_pages(0)->mutable_page_tokens()->RemoveLast(); },
      [](auto* a) { a->mutable_pages(0)->set_group(64); },
      [](auto* a) { a->mutable_pages(0)->set_rung(0, 4); },
      [](auto* a) { a->mutable_pages(0)->set_page_tokens(0, kBlockTokens - 1); },
      [](auto* a) { a->mutable_pages(0)->set_page_tokens(0, kBlockTokens + 1); },
      [](auto* a) { a->set_restorable_tokens(a->matched_tokens() + 1); },
  };
  for (size_t i = 0; i < spoils.size(); ++i) {
    testing::RandomValues random(9);
    v1::Answer proto;
    ToProto({1}, random.Match(40), RandomPages(&random, 40), &proto);
    spoils[i](&proto);
    EXPECT_EQ(FromProto(proto, kBlockTokens).status().code(), absl::StatusCode::kDataLoss) << i;
  }
}

TEST(AnswerTest, ReasonsOfALaterVersionAreKeptAsNumbers) {
  v1::Answer proto;
  proto.set_kind(static_cast<v1::MatchKind>(77));
  proto.add_shortened_by()->set_reason(static_cast<v1::ShortenReason>(78));
  const Answer answer = *FromProto(proto, kBlockTokens);
  EXPECT_EQ(static_cast<int>(answer.match.kind), 77);
  EXPECT_EQ(static_cast<int>(answer.match.shortened_by[0].reason), 78);
}

TEST(AnswerTest, PlansComeBackAsTheyWent) {
  block::ReservePlan plan{.reservation = {42}, .blocks = {}};
  plan.blocks.push_back(
      {.first_token = 32, .tokens = 16, .state = block::BlockState::kPresent, .rungs = {0, 1}});
  plan.blocks.push_back({.first_token = 48,
                         .tokens = 16,
                         .state = block::BlockState::kYours,
                         .rungs = {0, block::kNoLimit}});
  plan.blocks.push_back(
      {.first_token = 64, .tokens = 5, .state = block::BlockState::kPending, .rungs = {2, 3}});
  v1::ReserveReply proto;
  ToProto(plan, &proto);
  const block::ReservePlan back = *FromProto(proto, 2);
  EXPECT_EQ(back.reservation, plan.reservation);
  ASSERT_EQ(back.blocks.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(back.blocks[i].first_token, plan.blocks[i].first_token);
    EXPECT_EQ(back.blocks[i].tokens, plan.blocks[i].tokens);
    EXPECT_EQ(back.blocks[i].state, plan.blocks[i].state);
    EXPECT_EQ(back.blocks[i].rungs, plan.blocks[i].rungs);
  }
}

TEST(AnswerTest, PlansThatBreakTheContractAreDataLoss) {
  const std::vector<std::function<void(v1::ReserveReply*)>> spoils = {
      [](auto* r) { r->mutable_blocks(1)->set_first_token(17); },
      [](auto* r) { r->mutable_blocks(0)->set_tokens(0); },
      [](auto* r) { r->mutable_blocks(0)->clear_state(); },
      [](auto* r) { r->mutable_blocks(1)->add_rung(0); },
  };
  for (size_t i = 0; i < spoils.size(); ++i) {
    v1::ReserveReply proto;
    block::ReservePlan plan{.reservation = {42}, .blocks = {}};
    plan.blocks.push_back({.first_token = 0, .tokens = 16, .rungs = {0}});
    plan.blocks.push_back({.first_token = 16, .tokens = 16, .rungs = {0}});
    ToProto(plan, &proto);
    ASSERT_TRUE(FromProto(proto, 1).ok());
    spoils[i](&proto);
    EXPECT_EQ(FromProto(proto, 1).status().code(), absl::StatusCode::kDataLoss) << i;
  }
}

TEST(AnswerTest, CommitResultsComeBackAsTheyWent) {
  const block::CommitAnswer answer{.stored_tokens = 27,
                                   .duplicate_tokens = 17,
                                   .blocks = {{0, block::StoreResult::kDuplicate, ""},
                                              {16, block::StoreResult::kRefused, "no room"},
                                              {32, block::StoreResult::kStored, ""}}};
  v1::CommitReply proto;
  ToProto(answer, &proto);
  const block::CommitAnswer back = FromProto(proto);
  EXPECT_EQ(back.stored_tokens, 27u);
  EXPECT_EQ(back.duplicate_tokens, 17u);
  ASSERT_EQ(back.blocks.size(), 3u);
  EXPECT_EQ(back.blocks[1].first_token, 16u);
  EXPECT_EQ(back.blocks[1].result, block::StoreResult::kRefused);
  EXPECT_EQ(back.blocks[1].reason, "no room");
}

}  // namespace
}  // namespace prefixd::wire
