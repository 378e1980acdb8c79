// Every page that a row sees is worked on once for each head, by one block, whatever the lengths.
#include "client/cuda/work_list.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "client/cuda/formats.h"
#include "tests/cuda/cases.h"

namespace prefixd::cuda {
namespace {

alignas(128) std::byte page[128];  // an address; nobody reads it

WorkShape ShapeOf(uint32_t kv_heads, uint32_t group, uint32_t rows) {
  WorkShape shape;
  shape.kv_heads = kv_heads;
  shape.group = group;
  shape.query_rows = rows;
  const prefixd_format format =
      CFormat(quant::KvFormat{quant::MlxAffineFormat(8, 64, quant::Dtype::kF16),
                              quant::MlxAffineFormat(4, 64, quant::Dtype::kF16)});
  shape.formats.assign(2, GeometryOf(&format, 1, {kv_heads, 128, 128}).value()[0]);
  shape.kernel_of_format = {0, 1};
  return shape;
}

struct Sequence {
  std::vector<prefixd_block> blocks;
  uint32_t first_position = 0;
};

Sequence MakeSequence(uint32_t blocks, Draw& draw, bool mixed) {
  Sequence sequence;
  uint32_t tokens = 0;
  for (uint32_t i = 0; i < blocks; ++i) {
    const uint32_t used = i + 1 == blocks ? draw.From(8, 65) : 64;
    sequence.blocks.push_back({.units = page,
                               .arena_offset = 0,
                               .page_tokens = 64,
                               .tokens = used,
                               .format = mixed ? draw.Below(2) : 1});
    tokens += used;
  }
  sequence.first_position = tokens - 8;
  return sequence;
}

std::vector<prefixd_cuda_sequence> CSequences(const std::vector<Sequence>& sequences) {
  std::vector<prefixd_cuda_sequence> given;
  for (const Sequence& it : sequences) {
    given.push_back({it.blocks.data(), it.blocks.size(), it.first_position, 0});
  }
  return given;
}

// Checks the list's promises and returns the most pages that a block has.
uint32_t CheckList(const WorkShape& shape, const std::vector<WorkGrid>& grids,
                   const WorkList& list) {
  std::map<std::pair<uint32_t, uint32_t>, int> worked;  // (segment, page)
  std::set<uint32_t> parts;
  std::vector<uint32_t> parts_of_segment(list.segments.size());
  uint32_t most = 0;
  for (size_t kernel = 0; kernel < grids.size(); ++kernel) {
    const WorkList::Share& share = list.shares[kernel];
    EXPECT_EQ(share.firsts.size(), grids[kernel].blocks + 1);
    EXPECT_EQ(share.firsts.back(), share.items.size());
    for (uint32_t block = 0; block < grids[kernel].blocks; ++block) {
      uint32_t pages = 0;
      for (uint32_t i = share.firsts[block]; i < share.firsts[block + 1]; ++i) {
        const WorkItem& item = share.items[i];
        EXPECT_LT(item.begin, item.end);
        for (uint32_t at = item.begin; at < item.end; ++at) {
          ++worked[{item.segment, at}];
          EXPECT_EQ(shape.kernel_of_format[list.pages[at].format], kernel);
        }
        pages += item.end - item.begin;
        const Segment& segment = list.segments[item.segment];
        EXPECT_GE(item.part, segment.part);
        EXPECT_LT(item.part, segment.part + segment.parts);
        EXPECT_TRUE(parts.insert(item.part).second) << "two items write one part";
        ++parts_of_segment[item.segment];
      }
      most = std::max(most, pages);
    }
  }
  for (size_t i = 0; i < list.segments.size(); ++i) {
    EXPECT_EQ(parts_of_segment[i], list.segments[i].parts);
    EXPECT_GT(list.segments[i].parts, 0u);
  }
  for (const auto& [which, times] : worked) EXPECT_EQ(times, 1);
  return most;
}

TEST(WorkListTest, EveryPageIsWorkedOnOnceForEachHead) {
  Draw draw(11);
  for (int round = 0; round < 60; ++round) {
    const WorkShape shape = ShapeOf(draw.From(1, 10), draw.From(1, 17), draw.From(1, 9));
    std::vector<Sequence> sequences;
    size_t pages = 0;
    for (uint32_t i = 0, count = draw.From(1, 6); i < count; ++i) {
      sequences.push_back(MakeSequence(draw.From(1, 41), draw, round % 2 == 0));
      pages += sequences.back().blocks.size();
    }
    const std::vector<WorkGrid> grids = {{.blocks = draw.From(1, 501), .pages_at_once = 1},
                                         {.blocks = draw.From(1, 265), .pages_at_once = 4}};
    const auto given = CSequences(sequences);
    const auto list = MakeWorkList(shape, grids, given.data(), static_cast<uint32_t>(given.size()));
    ASSERT_TRUE(list.ok()) << list.status();
    EXPECT_EQ(list->pages.size(), pages);
    CheckList(shape, grids, *list);
    size_t all = 0;
    for (const auto& share : list->shares) {
      for (const WorkItem& item : share.items) all += item.end - item.begin;
    }
    const size_t segments = list->segments.size() / sequences.size();
    EXPECT_EQ(all, pages * segments);
  }
}

TEST(WorkListTest, BlocksHaveEqualShares) {
  const WorkShape shape = ShapeOf(8, 4, 1);
  Draw draw(3);
  const std::vector<Sequence> sequences(8, MakeSequence(2048, draw, false));
  const std::vector<WorkGrid> grids = {{.blocks = 528, .pages_at_once = 1},
                                       {.blocks = 264, .pages_at_once = 4}};
  const auto given = CSequences(sequences);
  const auto list = MakeWorkList(shape, grids, given.data(), 8);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_LE(CheckList(shape, grids, *list), 2048u * 8 * 8 / 264 + 1);
}

TEST(WorkListTest, ShortContextsAreNotCutFinerThanAThreadBlocksWarps) {
  const WorkShape shape = ShapeOf(8, 4, 1);
  Draw draw(3);
  const std::vector<Sequence> sequences(1, MakeSequence(8, draw, false));
  const std::vector<WorkGrid> grids = {{.blocks = 528, .pages_at_once = 1},
                                       {.blocks = 264, .pages_at_once = 4}};
  const auto given = CSequences(sequences);
  const auto list = MakeWorkList(shape, grids, given.data(), 1);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->shares[1].items.size(), 8u * 2);
}

TEST(WorkListTest, OnlyPagesThatAWindowShowsAreWorkedOn) {
  WorkShape shape = ShapeOf(2, 1, 1);
  shape.window = 100;
  shape.sink_tokens = 4;
  Draw draw(3);
  Sequence sequence = MakeSequence(20, draw, false);
  sequence.first_position = 18 * 64 + 10;  // sees positions 1063 to 1162: pages 16, 17 and 18
  for (const size_t unseen : {1, 5, 15, 19}) sequence.blocks[unseen].units = nullptr;
  const std::vector<WorkGrid> grids = {{.blocks = 8, .pages_at_once = 1},
                                       {.blocks = 8, .pages_at_once = 4}};
  const std::vector<Sequence> sequences = {sequence};
  const auto given = CSequences(sequences);
  const auto list = MakeWorkList(shape, grids, given.data(), 1);
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->pages.size(), 4u);
  EXPECT_EQ(list->pages[0].first, 0u) << "the sinks' page";
  EXPECT_EQ(list->pages[1].first, 16 * 64u);
  EXPECT_EQ(list->pages[3].first, 18 * 64u);
}

TEST(WorkListTest, MoreRowsThanAListMayHaveAreRefusedBeforeItIsMade) {
  const std::vector<WorkGrid> grids(2, WorkGrid{.blocks = 8, .pages_at_once = 1});
  Draw draw(4);
  const std::vector<Sequence> one = {MakeSequence(33, draw, false)};
  const auto message = [&](uint32_t kv_heads, uint32_t sequences) {
    WorkShape shape = ShapeOf(8, 16, 2048);
    shape.kv_heads = kv_heads;
    auto given = CSequences(one);
    given.resize(sequences, given.front());
    for (prefixd_cuda_sequence& it : given) it.first_position = 0;
    return std::string(MakeWorkList(shape, grids, given.data(), sequences).status().message());
  };
  EXPECT_EQ(message(8, 16), "");
  EXPECT_EQ(
      message(8, 17),
      "attend: 17 sequences of 262144 rows times heads are given, at most 4194304 are accepted "
      "in all");
  EXPECT_EQ(message(1u << 31, 2).substr(0, 42), "attend: 2 sequences of 70368744177664 rows");
}

TEST(WorkListTest, WhatIsImpossibleIsRefusedWithTheReason) {
  const WorkShape shape = ShapeOf(2, 1, 2);
  const std::vector<WorkGrid> grids(2, WorkGrid{.blocks = 8, .pages_at_once = 1});
  Draw draw(3);
  const auto message = [&](const Sequence& sequence) {
    const std::vector<Sequence> sequences = {sequence};
    const auto given = CSequences(sequences);
    return std::string(MakeWorkList(shape, grids, given.data(), 1).status().message());
  };
  Sequence sequence = MakeSequence(3, draw, false);
  sequence.blocks[2].tokens = 20;
  sequence.first_position = 147;
  EXPECT_EQ(message(sequence),
            "attend: the blocks of sequence 0 hold 148 tokens, positions up to 148 are asked for");
  sequence.first_position = 100;
  sequence.blocks[0].units = nullptr;
  EXPECT_EQ(message(sequence), "attend: sequence 0: block 0 has no units");
  sequence.blocks[0].units = page + 64;
  EXPECT_EQ(message(sequence), "attend: sequence 0: the units of block 0 are not 128-byte aligned");
  sequence.blocks[0] = {
      .units = page, .arena_offset = 0, .page_tokens = 8, .tokens = 9, .format = 0};
  EXPECT_EQ(message(sequence), "attend: sequence 0: block 0 has 9 tokens in 8 slots");
  sequence.blocks[0] = {
      .units = page, .arena_offset = 0, .page_tokens = 64, .tokens = 64, .format = 2};
  EXPECT_EQ(message(sequence), "attend: sequence 0: block 0 has format 2, 2 formats are given");
}

DevicePage PageOf(size_t units, uint32_t tokens, uint32_t page_tokens, uint32_t format) {
  DevicePage it;
  it.units = reinterpret_cast<const uint8_t*>(units);
  it.tokens = tokens;
  it.page_tokens = page_tokens;
  it.format = format;
  return it;
}

TEST(WorkListTest, PagesThatSequencesShareHaveTheirTilesOnce) {
  std::vector<DevicePage> pages = {PageOf(0x1000, 64, 64, 1), PageOf(0x2000, 200, 256, 1),
                                   PageOf(0x3000, 64, 64, 0), PageOf(0x2000, 200, 256, 1),
                                   PageOf(0x1000, 64, 64, 1), PageOf(0x4000, 1, 64, 1)};
  const TileList list = GiveTiles([](const DevicePage& it) { return it.format == 1; }, &pages);
  EXPECT_EQ(list.pages, (std::vector<uint32_t>{0, 1, 5}));
  EXPECT_EQ(list.tiles, 1u + 4 + 1);
  std::vector<uint32_t> tiles;
  for (const DevicePage& it : pages) tiles.push_back(it.tile);
  EXPECT_EQ(tiles, (std::vector<uint32_t>{0, 1, kNoTile, 1, 0, 5}));
}

TEST(WorkListTest, TilesAreForPagesOfTheArenaAndForFormatsThatAreNotCodesInRows) {
  const PairGeometry codes = ShapeOf(1, 1, 9).formats[0];
  EXPECT_FALSE(NeedsTiles(codes, 64, 128, false));
  EXPECT_TRUE(NeedsTiles(codes, 64, 128, true)) << "PCIe would carry it for each segment";
  EXPECT_TRUE(NeedsTiles(codes, 64, 256, false));
  EXPECT_TRUE(NeedsTiles(codes, 63, 128, false)) << "rows are not aligned";
  PairGeometry value_tiled = codes;
  value_tiled.value.layout = kTiled;
  EXPECT_TRUE(NeedsTiles(value_tiled, 64, 128, false));
  PairGeometry raw_key = codes;
  raw_key.key.codec = kRaw;
  EXPECT_TRUE(NeedsTiles(raw_key, 64, 128, false));
}

// What one sequence has more of than the other is in tiles of its own.
TEST(WorkListTest, APageOfWhichSequencesHaveOtherTokensHasTilesForEach) {
  std::vector<DevicePage> pages = {PageOf(0x1000, 30, 64, 0), PageOf(0x1000, 64, 64, 0)};
  const TileList list = GiveTiles([](const DevicePage&) { return true; }, &pages);
  EXPECT_EQ(list.pages, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(pages[0].tile, 0u);
  EXPECT_EQ(pages[1].tile, 1u);
}

}  // namespace
}  // namespace prefixd::cuda
