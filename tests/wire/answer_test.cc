#include "wire/answer.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/wire/random_values.h"
#include "wire/pages.h"

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

// Of every group: all pages in RAM, or none; offsets known or not.
std::vector<block::LeasedPage> RandomPages(testing::RandomValues* random, uint32_t restorable) {
  std::vector<block::LeasedPage> pages;
  for (uint32_t group = 0; group < 3; ++group) {
    const bool ready = random->Coin();
    const bool shared = random->Coin();
    for (uint32_t first = 0; first < restorable; first += kBlockTokens) {
      const uint32_t tokens = std::min(kBlockTokens, restorable - first);
      pages.push_back({.group = group,
                       .rung = random->Below(4),
                       .first_token = first,
                       .page_tokens = tokens + random->Below(kBlockTokens - tokens + 1),
                       .tokens = tokens,
                       .in_ram = ready,
                       .offset = shared && random->Coin() ? random->Wide() : block::kNoOffset});
    }
  }
  return pages;
}

void ExpectEqual(const std::vector<block::LeasedPage>& a, const std::vector<block::LeasedPage>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t p = 0; p < a.size(); ++p) {
    EXPECT_EQ(a[p].group, b[p].group);
    EXPECT_EQ(a[p].rung, b[p].rung);
    EXPECT_EQ(a[p].first_token, b[p].first_token);
    EXPECT_EQ(a[p].page_tokens, b[p].page_tokens);
    EXPECT_EQ(a[p].tokens, b[p].tokens);
    EXPECT_EQ(a[p].in_ram, b[p].in_ram);
    EXPECT_EQ(a[p].offset, b[p].offset);
  }
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
    ExpectEqual(back->pages, pages);
  }
}

// 131,072 tokens of a model with 14 groups: numbers in packed columns, never a message a page.
TEST(AnswerTest, APageCostsAFewBytes) {
  std::vector<block::LeasedPage> pages;
  for (uint32_t group = 0; group < 14; ++group) {
    for (uint32_t first = 0; first < 131'072; first += 64)
      pages.push_back({.group = group,
                       .first_token = first,
                       .page_tokens = 64,
                       .tokens = 64,
                       .in_ram = true,
                       .offset = uint64_t{first} << 20});
  }
  v1::Answer proto;
  ToProto({1}, {.matched_tokens = 131'072, .restorable_tokens = 131'072, .shortened_by = {}}, pages,
          &proto);
  EXPECT_EQ(proto.pages_size(), 14);
  EXPECT_LE(proto.ByteSizeLong(), pages.size() * 10 + 1000);
  EXPECT_TRUE(proto.pages(13).ready());
  ExpectEqual(FromProto(proto, 64)->pages, pages);
}

// Blocks 0 to 2 of two groups, the last of 5 tokens in a page of 9 slots.
v1::Answer WithTable() {
  v1::Answer proto;
  ToProto({1}, {.matched_tokens = 37, .restorable_tokens = 37, .shortened_by = {}}, {}, &proto);
  ToProto({.groups = {0, 2},
           .rungs = {1, 0},
           .last_page_tokens = 9,
           .offsets = {128, 256, 384, 4096, 0, 8192}},
          proto.mutable_table());
  return proto;
}

TEST(AnswerTest, ATableStandsForItsColumns) {
  std::vector<block::LeasedPage> pages;
  const uint64_t offsets[] = {128, 256, 384, 4096, 0, 8192};
  for (uint32_t i = 0; i < 6; ++i) {
    const uint32_t first = i % 3 * 16;
    pages.push_back({.group = i / 3 * 2,
                     .rung = 1 - i / 3,
                     .first_token = first,
                     .page_tokens = first == 32 ? 9u : 16u,
                     .tokens = first == 32 ? 5u : 16u,
                     .in_ram = true,
                     .offset = offsets[i]});
  }
  const absl::StatusOr<Answer> back = FromProto(WithTable(), kBlockTokens);
  ASSERT_TRUE(back.ok()) << back.status();
  ExpectEqual(back->pages, pages);
}

TEST(AnswerTest, TablesThatBreakTheContractAreDataLoss) {
  const std::vector<std::function<void(v1::Answer*)>> spoils = {
      [](auto* a) { a->mutable_table()->add_rung(0); },
      [](auto* a) { a->mutable_table()->mutable_group()->RemoveLast(); },
      [](auto* a) { a->mutable_table()->add_offset(0); },
      [](auto* a) { a->mutable_table()->mutable_offset()->RemoveLast(); },
      [](auto* a) { a->mutable_table()->set_group(1, 64); },
      [](auto* a) { a->mutable_table()->set_rung(0, 4); },
      [](auto* a) { a->mutable_table()->set_last_page_tokens(4); },
      [](auto* a) { a->mutable_table()->set_last_page_tokens(17); },
      [](auto* a) { a->set_restorable_tokens(32); },
  };
  for (size_t i = 0; i < spoils.size(); ++i) {
    v1::Answer proto = WithTable();
    spoils[i](&proto);
    EXPECT_EQ(FromProto(proto, kBlockTokens).status().code(), absl::StatusCode::kDataLoss) << i;
  }
}

TEST(AnswerTest, OnePageThatIsNotThereYetMakesItsGroupUnready) {
  std::vector<block::LeasedPage> pages;
  for (uint32_t group = 0; group < 2; ++group) {
    for (uint32_t first = 0; first < 32; first += 16)
      pages.push_back({.group = group,
                       .first_token = first,
                       .page_tokens = 16,
                       .tokens = 16,
                       .in_ram = true,
                       .offset = 4096});
  }
  pages[3].in_ram = false;
  pages[3].offset = block::kNoOffset;
  v1::Answer proto;
  ToProto({1}, {.matched_tokens = 32, .restorable_tokens = 32, .shortened_by = {}}, pages, &proto);
  EXPECT_TRUE(proto.pages(0).ready());
  EXPECT_FALSE(proto.pages(1).ready());
  EXPECT_EQ(proto.pages(1).offset(0), 4096u);
  EXPECT_EQ(proto.pages(1).offset(1), block::kNoOffset);
}

TEST(AnswerTest, WithoutAnArenaNoOffsetTravels) {
  v1::Answer proto;
  ToProto({1}, {.matched_tokens = 16, .restorable_tokens = 16, .shortened_by = {}},
          {{.group = 0, .page_tokens = 16, .tokens = 16, .in_ram = true}}, &proto);
  EXPECT_EQ(proto.pages(0).offset_size(), 0);
  EXPECT_EQ(FromProto(proto, 16)->pages[0].offset, block::kNoOffset);
}

TEST(AnswerTest, ColumnsThatBreakTheContractAreDataLoss) {
  const std::vector<std::function<void(v1::Answer*)>> spoils = {
      [](auto* a) { a->mutable_pages(0)->add_rung(0); },
      [](auto* a) { a->mutable_pages(0)->mutable_page_tokens()->RemoveLast(); },
      [](auto* a) { a->mutable_pages(0)->mutable_offset()->Resize(2, 0); },
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
                         .rungs = {0, block::kNoLimit},
                         .seeds = {~uint64_t{0}, 0}});
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
    EXPECT_EQ(back.blocks[i].seeds, plan.blocks[i].seeds);
  }
}

TEST(AnswerTest, PlansThatBreakTheContractAreDataLoss) {
  const std::vector<std::function<void(v1::ReserveReply*)>> spoils = {
      [](auto* r) { r->mutable_blocks(1)->set_first_token(17); },
      [](auto* r) { r->mutable_blocks(0)->set_tokens(0); },
      [](auto* r) { r->mutable_blocks(0)->clear_state(); },
      [](auto* r) { r->mutable_blocks(1)->add_rung(0); },
      [](auto* r) { r->mutable_blocks(1)->mutable_seed()->Resize(2, 7); },
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
                                              {32, block::StoreResult::kStored, ""}},
                                   .lease = {},
                                   .pages = {}};
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

TEST(AnswerTest, ACommitsLeaseComesBackWithItsPages) {
  block::CommitAnswer answer{.stored_tokens = 37, .blocks = {}, .lease = {9}, .pages = {}};
  answer.first_block = 2;
  for (uint32_t group = 0; group < 2; ++group) {
    for (uint32_t first = 32; first < 69; first += 16) {
      const uint32_t tokens = std::min(16u, 69 - first);
      answer.pages.push_back({.group = group,
                              .rung = 1,
                              .first_token = first,
                              .page_tokens = tokens,
                              .tokens = tokens,
                              .in_ram = true,
                              .offset = 128 * first + group});
    }
  }
  v1::CommitReply proto;
  ToProto(answer, &proto);
  const absl::StatusOr<block::CommitAnswer> back = FromProto(proto, kBlockTokens);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->lease.value, 9u);
  EXPECT_EQ(back->first_block, 2u);
  ExpectEqual(back->pages, answer.pages);
  const std::vector<std::function<void(v1::CommitReply*)>> spoils = {
      [](auto* r) { r->mutable_pages(0)->set_page_tokens(2, 17); },
      [](auto* r) { r->mutable_pages(0)->set_page_tokens(2, 0); },
      [](auto* r) { r->mutable_pages(0)->add_offset(1); },
      [](auto* r) { r->mutable_pages(0)->clear_page_tokens(); },
      [](auto* r) { r->set_first_block(~0u); },
  };
  for (size_t i = 0; i < spoils.size(); ++i) {
    v1::CommitReply spoiled = proto;
    spoils[i](&spoiled);
    EXPECT_EQ(FromProto(spoiled, kBlockTokens).status().code(), absl::StatusCode::kDataLoss) << i;
  }
}

TEST(AnswerTest, EventsOfALeaseComeBackAsTheyWent) {
  LeaseReady ready{.lease = {7}, .group = 3, .pages = {}};
  for (const uint32_t first : {0u, 16u, 48u})
    ready.pages.push_back(
        {.group = 3, .first_token = first, .in_ram = true, .offset = first * 512});
  v1::LeaseReady proto;
  ToProto(ready, &proto);
  const LeaseReady back = *FromProto(proto);
  EXPECT_EQ(back.lease.value, 7u);
  EXPECT_EQ(back.group, 3u);
  ExpectEqual(back.pages, ready.pages);
  proto.add_offset(1);
  EXPECT_EQ(FromProto(proto).status().code(), absl::StatusCode::kDataLoss);
  v1::LeaseFailed failed;
  ToProto(
      LeaseFailed{
          .lease = {8}, .group = 2, .usable_tokens = 96, .reason = block::ShortenReason::kCorrupt},
      &failed);
  const LeaseFailed failed_back = FromProto(failed);
  EXPECT_EQ(failed_back.lease.value, 8u);
  EXPECT_EQ(failed_back.group, 2u);
  EXPECT_EQ(failed_back.usable_tokens, 96u);
  EXPECT_EQ(failed_back.reason, block::ShortenReason::kCorrupt);
}

}  // namespace
}  // namespace prefixd::wire
