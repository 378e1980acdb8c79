#include "wire/pages.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"

#include "block/layer_group.h"

namespace prefixd::wire {
namespace {

using Pages = std::span<const block::LeasedPage>;

template <typename Value>
Value* Column(size_t entries, google::protobuf::RepeatedField<Value>* column) {
  column->Reserve(static_cast<int>(entries));
  return column->AddNAlreadyReserved(static_cast<int>(entries));
}

uint64_t BlocksOf(const Columns& columns) {
  const uint64_t end = (uint64_t{columns.tokens} + columns.block_tokens - 1) / columns.block_tokens;
  return end - std::min<uint64_t>(end, columns.first_block);
}

void WriteGroup(Pages pages, v1::GroupPages* proto) {
  proto->set_group(pages.front().group);
  uint32_t* const rungs = Column(pages.size(), proto->mutable_rung());
  uint32_t* const slots = Column(pages.size(), proto->mutable_page_tokens());
  uint64_t* const offsets = Column(pages.size(), proto->mutable_offset());
  bool ready = true;
  bool known = false;
  for (size_t i = 0; i < pages.size(); ++i) {
    rungs[i] = pages[i].rung;
    slots[i] = pages[i].page_tokens;
    offsets[i] = pages[i].offset;
    ready = ready && pages[i].in_ram;
    known = known || pages[i].offset != block::kNoOffset;
  }
  if (!known) proto->clear_offset();
  proto->set_ready(ready);
}

block::LayerKind KindOf(const Columns& columns, uint32_t group) {
  return group < columns.kinds.size() ? columns.kinds[group] : block::LayerKind::kFull;
}

absl::Status ReadSnapshot(const v1::GroupPages& proto, const Columns& columns,
                          std::vector<block::LeasedPage>* pages) {
  const uint32_t blocks = static_cast<uint32_t>(BlocksOf(columns));
  const uint32_t first =
      blocks == 0 ? 0 : (columns.first_block + blocks - 1) * columns.block_tokens;
  const bool one = blocks > 0 && proto.rung_size() == 1 && proto.page_tokens_size() == 1 &&
                   proto.offset_size() <= 1;
  if (!one || proto.rung(0) != columns.tokens - first ||
      proto.page_tokens(0) != columns.tokens - first) {
    return absl::DataLossError(
        absl::StrCat("pages: state group ", proto.group(), " has ", proto.rung_size(), " rungs, ",
                     proto.page_tokens_size(), " page_tokens and ", proto.offset_size(),
                     " offsets, it has one snapshot, at token ", columns.tokens));
  }
  pages->push_back({.group = proto.group(),
                    .rung = proto.rung(0),
                    .first_token = first,
                    .page_tokens = proto.rung(0),
                    .tokens = proto.rung(0),
                    .in_ram = proto.ready(),
                    .offset = proto.offset().empty() ? block::kNoOffset : proto.offset(0)});
  return absl::OkStatus();
}

}  // namespace

void WriteColumns(const std::vector<block::LeasedPage>& pages,
                  google::protobuf::RepeatedPtrField<v1::GroupPages>* columns) {
  for (auto first = pages.begin(); first != pages.end();) {
    const auto last = std::find_if(first, pages.end(), [&](const block::LeasedPage& page) {
      return page.group != first->group;
    });
    WriteGroup(Pages(first, last), columns->Add());
    first = last;
  }
}

void ToProto(const block::PageTable& table, v1::PageTable* proto) {
  std::copy(table.groups.begin(), table.groups.end(),
            Column(table.groups.size(), proto->mutable_group()));
  std::copy(table.rungs.begin(), table.rungs.end(),
            Column(table.rungs.size(), proto->mutable_rung()));
  proto->set_last_page_tokens(table.last_page_tokens);
  std::copy(table.offsets.begin(), table.offsets.end(),
            Column(table.offsets.size(), proto->mutable_offset()));
}

absl::Status ExpandTable(const v1::PageTable& table, const Columns& columns,
                         google::protobuf::RepeatedPtrField<v1::GroupPages>* pages) {
  const uint64_t blocks = BlocksOf(columns);
  const auto groups = static_cast<uint64_t>(table.group_size());
  const auto offsets = static_cast<uint64_t>(table.offset_size());
  if (blocks == 0 || groups > block::kMaxGroups || offsets != groups * blocks ||
      table.rung_size() != table.group_size()) {
    return absl::DataLossError(absl::StrCat("pages: a table of ", groups, " groups, ",
                                            table.rung_size(), " rungs and ", offsets,
                                            " offsets for ", blocks, " blocks"));
  }
  const uint64_t* offset = table.offset().data();
  for (int i = 0; i < table.group_size(); ++i, offset += blocks) {
    v1::GroupPages* const group = pages->Add();
    group->set_group(table.group(i));
    group->set_ready(true);
    std::fill_n(Column(blocks, group->mutable_rung()), blocks, table.rung(i));
    std::fill_n(Column(blocks, group->mutable_page_tokens()), blocks, columns.block_tokens);
    group->set_page_tokens(static_cast<int>(blocks) - 1, table.last_page_tokens());
    std::copy_n(offset, blocks, Column(blocks, group->mutable_offset()));
  }
  return absl::OkStatus();
}

absl::Status ReadColumns(const v1::GroupPages& proto, const Columns& columns,
                         std::vector<block::LeasedPage>* pages) {
  if (KindOf(columns, proto.group()) == block::LayerKind::kState) {
    return ReadSnapshot(proto, columns, pages);
  }
  const uint64_t blocks = BlocksOf(columns);
  const auto rungs = static_cast<uint64_t>(proto.rung_size());
  const auto slots = static_cast<uint64_t>(proto.page_tokens_size());
  const auto offsets = static_cast<uint64_t>(proto.offset_size());
  if (proto.group() >= block::kMaxGroups || rungs != blocks || slots != blocks ||
      (offsets != blocks && offsets != 0)) {
    return absl::DataLossError(absl::StrCat("pages: group ", proto.group(), " has ", rungs,
                                            " rungs, ", slots, " page_tokens and ", offsets,
                                            " offsets for ", blocks, " blocks"));
  }
  pages->reserve(pages->size() + blocks);
  for (int i = 0; i < proto.rung_size(); ++i) {
    // Below `tokens`, so it fits into 32 bits.
    const uint32_t first = (columns.first_block + static_cast<uint32_t>(i)) * columns.block_tokens;
    const block::LeasedPage page{.group = proto.group(),
                                 .rung = proto.rung(i),
                                 .first_token = first,
                                 .page_tokens = proto.page_tokens(i),
                                 .tokens = std::min(columns.block_tokens, columns.tokens - first),
                                 .in_ram = proto.ready(),
                                 .offset = offsets == 0 ? block::kNoOffset : proto.offset(i)};
    const bool may_be_absent = KindOf(columns, page.group) == block::LayerKind::kSliding;
    if (may_be_absent && page.absent() && page.page_tokens == 0 &&
        page.offset == block::kNoOffset) {
      pages->push_back(page);
      continue;
    }
    if (page.rung >= block::kMaxLadder || page.page_tokens < page.tokens ||
        page.page_tokens > columns.block_tokens) {
      return absl::DataLossError(absl::StrCat(
          "pages: page of group ", page.group, " at token ", first, " has rung ", page.rung,
          " and ", page.page_tokens, " slots for ", page.tokens, " tokens"));
    }
    pages->push_back(page);
  }
  return absl::OkStatus();
}

}  // namespace prefixd::wire
