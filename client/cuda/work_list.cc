#include "work_list.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"

#include "base/status.h"

namespace prefixd::cuda {
namespace {

// The generic kernel's list has a segment and an item, 56 bytes, for each kColumns of them.
constexpr uint64_t kMostColumns = uint64_t{1} << 22;

template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("attend: ", parts...));
}

// Pages of one sequence, next to each other in the list and for one kernel.
struct Run {
  uint32_t sequence = 0;
  uint32_t begin = 0, end = 0;
};

// Returns whether a row of the call sees any of positions [begin, end).
bool IsSeen(const WorkShape& shape, uint64_t first_position, uint64_t begin, uint64_t end) {
  if (begin >= first_position + shape.query_rows || begin == end) return false;
  if (shape.window == 0 || begin < shape.sink_tokens) return true;
  const uint64_t first = first_position + 1;
  return end > (first > shape.window ? first - shape.window : 0);
}

class Builder {
 public:
  Builder(const WorkShape& shape, const std::vector<WorkGrid>& grids)
      : shape_(shape), grids_(grids), runs_(grids.size()), pieces_(grids.size()) {
    list_.shares.resize(grids.size());
  }

  absl::Status Add(const prefixd_cuda_sequence& sequence, uint32_t number);
  absl::StatusOr<WorkList> Finish();

 private:
  struct Piece {
    WorkItem item;
    uint32_t block = 0;
  };

  absl::Status CheckBlock(const prefixd_block& block, uint32_t sequence, size_t at) const;
  uint32_t SegmentsEach() const {
    const uint32_t columns = shape_.query_rows * shape_.group, each = shape_.segment_columns;
    return shape_.kv_heads * ((columns + each - 1) / each);
  }
  void Cut(size_t kernel);
  void CutLine(size_t kernel, uint64_t begin, uint64_t end, uint32_t segment, uint32_t block);
  void CutFlat(size_t kernel, uint64_t pages, uint64_t blocks);
  void NumberParts();

  const WorkShape& shape_;
  const std::vector<WorkGrid>& grids_;
  WorkList list_;
  std::vector<std::vector<Run>> runs_;      // of each kernel
  std::vector<std::vector<Piece>> pieces_;  // of each kernel, by block
};

absl::Status Builder::CheckBlock(const prefixd_block& block, uint32_t sequence, size_t at) const {
  if (block.units == nullptr) {
    return Refuse("sequence ", sequence, ": block ", at, " has no units");
  }
  if (reinterpret_cast<uintptr_t>(block.units) % kUnitAlignment != 0) {
    return Refuse("sequence ", sequence, ": the units of block ", at, " are not 128-byte aligned");
  }
  if (block.page_tokens == 0 || block.page_tokens > 1024 || block.tokens > block.page_tokens) {
    return Refuse("sequence ", sequence, ": block ", at, " has ", block.tokens, " tokens in ",
                  block.page_tokens, " slots");
  }
  if (block.format >= shape_.formats.size()) {
    return Refuse("sequence ", sequence, ": block ", at, " has format ", block.format, ", ",
                  shape_.formats.size(), " formats are given");
  }
  return absl::OkStatus();
}

absl::Status Builder::Add(const prefixd_cuda_sequence& sequence, uint32_t number) {
  if (sequence.blocks == nullptr && sequence.block_count > 0) {
    return Refuse("sequence ", number, " has no blocks");
  }
  uint64_t position = 0;
  size_t last_kernel = grids_.size();
  for (size_t i = 0; i < sequence.block_count; ++i) {
    const prefixd_block& block = sequence.blocks[i];
    const uint64_t first = position;
    position += block.tokens;
    if (!IsSeen(shape_, sequence.first_position, first, position)) continue;
    PREFIXD_RETURN_IF_ERROR(CheckBlock(block, number, i));
    const PairGeometry& pair = shape_.formats[block.format];
    const auto at = static_cast<uint32_t>(list_.pages.size());
    list_.pages.push_back(
        {.units = static_cast<const uint8_t*>(block.units),
         .first = static_cast<uint32_t>(first),
         .tokens = block.tokens,
         .page_tokens = block.page_tokens,
         .format = block.format,
         .layer_bytes = PlacesOf(pair, shape_.kv_heads, block.page_tokens).bytes});
    list_.most_page_tokens = std::max(list_.most_page_tokens, block.page_tokens);
    const size_t kernel = shape_.kernel_of_format[block.format];
    if (kernel == last_kernel) {
      runs_[kernel].back().end = at + 1;
    } else {
      runs_[kernel].push_back({.sequence = number, .begin = at, .end = at + 1});
    }
    last_kernel = kernel;
  }
  const uint64_t wanted = uint64_t{sequence.first_position} + shape_.query_rows;
  if (position < wanted || position > std::numeric_limits<uint32_t>::max()) {
    return Refuse("the blocks of sequence ", number, " hold ", position,
                  " tokens, positions up to ", wanted - 1, " are asked for");
  }
  const uint32_t columns = shape_.query_rows * shape_.group;
  for (uint32_t column = 0; column < columns; column += shape_.segment_columns) {
    for (uint32_t head = 0; head < shape_.kv_heads; ++head) {
      list_.segments.push_back({.sequence = number,
                                .kv_head = head,
                                .column = column,
                                .first_position = sequence.first_position});
    }
  }
  return absl::OkStatus();
}

// Pages [begin, end) of all runs laid end to end, for segment `segment` of each sequence.
void Builder::CutLine(size_t kernel, uint64_t begin, uint64_t end, uint32_t segment,
                      uint32_t block) {
  uint64_t at = 0;
  for (const Run& run : runs_[kernel]) {
    const uint64_t pages = run.end - run.begin;
    const uint64_t first = std::max(begin, at), last = std::min(end, at + pages);
    if (first < last) {
      pieces_[kernel].push_back({.item = {.segment = run.sequence * SegmentsEach() + segment,
                                          .begin = static_cast<uint32_t>(run.begin + first - at),
                                          .end = static_cast<uint32_t>(run.begin + last - at)},
                                 .block = block});
    }
    at += pages;
    if (at >= end) break;
  }
}

// Equal shares of a line in which each run stands once for each of its segments.
void Builder::CutFlat(size_t kernel, uint64_t pages, uint64_t blocks) {
  const uint64_t all = pages * SegmentsEach();
  uint64_t at = 0;
  uint64_t block = 0;
  for (const Run& run : runs_[kernel]) {
    for (uint32_t segment = 0; segment < SegmentsEach(); ++segment) {
      for (uint32_t page = run.begin; page < run.end;) {
        while (at >= all * (block + 1) / blocks) ++block;
        const uint64_t room = all * (block + 1) / blocks - at;
        const auto count = static_cast<uint32_t>(std::min<uint64_t>(room, run.end - page));
        pieces_[kernel].push_back({.item = {.segment = run.sequence * SegmentsEach() + segment,
                                            .begin = page,
                                            .end = page + count},
                                   .block = static_cast<uint32_t>(block)});
        page += count;
        at += count;
      }
    }
  }
}

void Builder::Cut(size_t kernel) {
  uint64_t pages = 0;
  for (const Run& run : runs_[kernel]) pages += run.end - run.begin;
  if (pages == 0) return;
  const uint64_t most = std::max(1u, grids_[kernel].blocks);
  const uint64_t each = std::max(1u, grids_[kernel].pages_at_once);
  const uint64_t segments = SegmentsEach();
  // The heads of a page range on neighbouring blocks, at the same time: they read a page together.
  const uint64_t groups = most / segments;
  if (groups > 0 && most - groups * segments <= most / 16) {
    const uint64_t used = std::min(groups, (pages + each - 1) / each);
    for (uint64_t g = 0; g < used; ++g) {
      for (uint32_t s = 0; s < segments; ++s) {
        CutLine(kernel, pages * g / used, pages * (g + 1) / used, s,
                static_cast<uint32_t>(g * segments + s));
      }
    }
    return;
  }
  CutFlat(kernel, pages, std::min(most, (pages * segments + each - 1) / each));
}

void Builder::NumberParts() {
  for (const auto& pieces : pieces_) {
    for (const Piece& piece : pieces) ++list_.segments[piece.item.segment].parts;
  }
  for (Segment& segment : list_.segments) {
    if (segment.parts == 1) continue;
    segment.part = list_.parts;
    list_.parts += segment.parts;
  }
  uint32_t whole = list_.parts;
  for (Segment& segment : list_.segments) {
    if (segment.parts == 1) segment.part = whole++;
  }
  std::vector<uint32_t> given(list_.segments.size());
  for (auto& pieces : pieces_) {
    for (Piece& piece : pieces) {
      const uint32_t segment = piece.item.segment;
      piece.item.part = list_.segments[segment].part + given[segment]++;
      piece.item.kv_head = list_.segments[segment].kv_head;
    }
  }
}

absl::StatusOr<WorkList> Builder::Finish() {
  for (size_t kernel = 0; kernel < grids_.size(); ++kernel) Cut(kernel);
  NumberParts();
  for (size_t kernel = 0; kernel < grids_.size(); ++kernel) {
    WorkList::Share& share = list_.shares[kernel];
    share.firsts.assign(grids_[kernel].blocks + 1, 0);
    for (const Piece& piece : pieces_[kernel]) {
      share.items.push_back(piece.item);
      ++share.firsts[piece.block + 1];
    }
    for (size_t b = 1; b < share.firsts.size(); ++b) share.firsts[b] += share.firsts[b - 1];
  }
  return std::move(list_);
}

}  // namespace

absl::StatusOr<WorkList> MakeWorkList(const WorkShape& shape, const std::vector<WorkGrid>& grids,
                                      const prefixd_cuda_sequence* sequences, uint32_t count) {
  if (sequences == nullptr || count == 0) return Refuse("no sequences given");
  const uint64_t columns = uint64_t{shape.query_rows} * shape.group * shape.kv_heads;
  if (count > kMostColumns / std::max<uint64_t>(columns, 1)) {
    return Refuse(count, " sequences of ", columns, " rows times heads are given, at most ",
                  kMostColumns, " are accepted in all");
  }
  Builder builder(shape, grids);
  for (uint32_t i = 0; i < count; ++i) PREFIXD_RETURN_IF_ERROR(builder.Add(sequences[i], i));
  return builder.Finish();
}

TileList GiveTiles(const std::function<bool(const DevicePage&)>& wanted,
                   std::vector<DevicePage>* pages) {
  TileList list;
  std::map<std::tuple<const uint8_t*, uint32_t, uint32_t, uint32_t>, uint32_t> given;
  for (uint32_t i = 0; i < pages->size(); ++i) {
    DevicePage& page = (*pages)[i];
    if (!wanted(page)) continue;
    const auto [it, is_new] =
        given.try_emplace({page.units, page.page_tokens, page.format, page.tokens}, list.tiles);
    page.tile = it->second;
    if (!is_new) continue;
    list.pages.push_back(i);
    list.tiles += (page.tokens + kTileTokens - 1) / kTileTokens;
  }
  return list;
}

}  // namespace prefixd::cuda
