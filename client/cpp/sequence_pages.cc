#include "sequence_pages.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "base/stream_copy.h"
#include "block/page_layout.h"
#include "element_rows.h"
#include "format_index.h"
#include "packed_rows.h"

namespace prefixd::client {
namespace {

// Bytes of one layer from which Gather goes past the caches: together with the model's other layers
// they are more than the caches hold, and what an engine reads first would be gone from them.
constexpr uint64_t kPastCachesFrom = uint64_t{1} << 20;

}  // namespace

uint32_t WriteRungs::Coarser(uint32_t formats) const {
  for (uint32_t next = rung + 1; next < formats && next < 64; ++next) {
    if ((coarser >> next & 1) != 0) return next;
  }
  return rung;
}

SequencePages::SequencePages(std::shared_ptr<const SpaceState> space, uint32_t block_tokens,
                             const WriteRungs& write_rungs)
    : space_(std::move(space)),
      block_tokens_(block_tokens),
      write_rungs_(write_rungs),
      states_(space_) {
  Restart(nullptr, 0);
}

void SequencePages::Restart(std::shared_ptr<CachedPages> load, uint32_t cached_tokens) {
  load_ = std::move(load);
  cached_tokens_ = cached_tokens;
  layers_.assign(space_->layers().size(), {.end = cached_tokens, .table = {}, .settled = 0});
  own_.clear();
  own_.resize(space_->groups().size());
  coarser_.clear();
  states_.Clear();
}

uint32_t SequencePages::complete_tokens() const {
  uint32_t tokens = ~uint32_t{0};
  for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
    if (!space_->IsState(space_->layers()[layer].group)) {
      tokens = std::min(tokens, layers_[space_->owner(layer)].end);
    }
  }
  if (tokens != ~uint32_t{0}) return tokens;
  const std::vector<State> states = states_.Whole(cached_tokens_, tokens);  // only state layers
  return states.empty() ? cached_tokens_ : states.back().tokens;
}

absl::Status SequencePages::PutState(LayerPlace place, uint32_t tokens,
                                     std::span<const std::byte> state) {
  if (tokens > cached_tokens_) return states_.Put(place, tokens, state);
  return absl::InvalidArgumentError(
      absl::StrCat("put_state: at token ", tokens, ", the first ", cached_tokens_, " are cached"));
}

void SequencePages::CopyState(LayerPlace place, std::span<std::byte> state) const {
  const std::byte* page = load_->page(place.group, 0).bytes;
  std::memcpy(state.data(), page + place.index * state.size(), state.size());
}

absl::Status SequencePages::CheckAppend(const LayerTokens& tokens) const {
  PREFIXD_RETURN_IF_ERROR(space_->CheckOwns("append", tokens.layer));
  if (space_->IsState(space_->layers()[tokens.layer].group)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "append: layer ", tokens.layer, " keeps a state and no tokens, PutState() takes it"));
  }
  const uint32_t end = layers_[tokens.layer].end;
  if (tokens.begin >= cached_tokens_ && tokens.begin <= end) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("append: begin is ", tokens.begin, " in layer ",
                                                 tokens.layer, ", must be ", cached_tokens_, " to ",
                                                 end));
}

bool SequencePages::IsCoarser(uint32_t block) {
  const uint32_t index = block - first_own_block();
  if (index >= coarser_.size()) {
    const bool donated = index == 0 && cached_tokens_ % block_tokens_ != 0;
    const bool coarser = advised_ && write_rungs_.coarser != 0 && !donated &&
                         !write_rungs_.IsHead(block, block_tokens_);
    coarser_.resize(index + size_t{1}, false);
    coarser_[index] = coarser;
    coarser_blocks_ += coarser ? 1 : 0;
  }
  return coarser_[index];
}

absl::StatusOr<SequencePages::Own> SequencePages::NewOwn(uint32_t group, uint32_t block) {
  const block::LayerGroup& layers = space_->groups()[group];
  const uint32_t donated = block == first_own_block() ? cached_tokens_ % block_tokens_ : 0;
  const CachedPage donor = donated ? load_->page(group, block) : CachedPage();
  const bool coarser = IsCoarser(block);
  const uint32_t format = coarser ? write_rungs_.Coarser(space_->formats())
                                  : write_rungs_.OfBlock(block, block_tokens_);
  if (!donated && format >= space_->formats()) {
    return absl::InvalidArgumentError(
        absl::StrCat("append: write_format is ", format, ", the layers have ", space_->formats()));
  }
  const uint32_t rung = donated ? donor.rung : RungOf(layers, format);
  const uint64_t bytes = block::LayoutOfPage(layers, rung, block_tokens_).page_bytes;
  PageMemory memory = AllocatePage(staging_.get(), bytes);
  if (!memory) return absl::ResourceExhaustedError("append: no memory for a page");
  std::memset(memory.get(), 0, bytes);
  if (donated) {
    block::CopyPageTokens(layers, rung, donor.bytes, {.page_tokens = donor.page_tokens},
                          memory.get(), {.page_tokens = block_tokens_}, donated);
  }
  const CachedPage place{.bytes = memory.get(), .page_tokens = block_tokens_, .rung = rung};
  return Own{.memory = std::move(memory), .place = place};
}

absl::Status SequencePages::EnsureOwn(uint32_t group, uint32_t first_block, uint32_t last_block) {
  for (uint32_t b = std::max(first_block, first_own_block()); b <= last_block; ++b) {
    const uint32_t index = b - first_own_block();
    if (index == own_[group].size()) {
      PREFIXD_ASSIGN_OR_RETURN(Own own, NewOwn(group, b));
      own_[group].push_back(std::move(own));
    } else if (!own_[group][index].memory) {
      PREFIXD_RETURN_IF_ERROR(Unswap(group, &own_[group][index]));
    }
  }
  return absl::OkStatus();
}

absl::Status SequencePages::Unswap(uint32_t group, Own* own) const {
  const uint64_t bytes =
      block::LayoutOfPage(space_->groups()[group], own->place.rung, block_tokens_).page_bytes;
  PageMemory memory = AllocatePage(staging_.get(), bytes);
  if (!memory) return absl::ResourceExhaustedError("append: no memory for a page");
  std::memcpy(memory.get(), own->place.bytes, bytes);
  own->place.bytes = memory.get();
  own->place.arena_offset = kPrivate;
  own->memory = std::move(memory);
  return absl::OkStatus();
}

void SequencePages::Unsettle(uint32_t group, uint32_t block) {
  for (const uint32_t layer : space_->groups()[group].layers) {
    layers_[layer].settled = std::min(layers_[layer].settled, block);
  }
}

template <typename Visit>
absl::Status SequencePages::ForEachOwn(const LayerTokens& tokens, Visit visit) {
  if (tokens.count == 0) return absl::OkStatus();
  const uint32_t group = space_->layers()[tokens.layer].group;
  const uint32_t end = tokens.begin + tokens.count;
  PREFIXD_RETURN_IF_ERROR(
      EnsureOwn(group, tokens.begin / block_tokens_, (end - 1) / block_tokens_));
  Unsettle(group, tokens.begin / block_tokens_);
  for (uint32_t at = tokens.begin; at < end;) {
    const uint32_t b = at / block_tokens_, slot = at % block_tokens_;
    const uint32_t count = std::min(end - at, block_tokens_ - slot);
    visit(own_[group][b - first_own_block()], slot, at - tokens.begin, count);
    at += count;
  }
  layers_[tokens.layer].end = end;
  return absl::OkStatus();
}

absl::Status SequencePages::Append(const LayerTokens& tokens, const TensorView& key,
                                   const TensorView& value) {
  const LayerPlace place = space_->layers()[tokens.layer];
  const block::LayerGroup& group = space_->groups()[place.group];
  PREFIXD_RETURN_IF_ERROR(CheckAppend(tokens));
  PREFIXD_RETURN_IF_ERROR(CheckTensors("append", group, key, value));
  return ForEachOwn(tokens, [&](Own& own, uint32_t slot, uint32_t row, uint32_t count) {
    QuantizeIntoPage({.group = group,
                      .rung = own.place.rung,
                      .layer = place.index,
                      .page_tokens = block_tokens_,
                      .first_slot = slot,
                      .first_row = row,
                      .tokens = count,
                      .tensor_tokens = tokens.count},
                     key, value, own.memory.get());
  });
}

absl::StatusOr<uint32_t> SequencePages::RungOfPacked(const LayerTokens& tokens) const {
  if (write_rungs_.coarser != 0) {
    return absl::FailedPreconditionError(
        "write_packed: the sequence was begun with coarser_formats, Append() follows the advice");
  }
  const uint32_t group = space_->layers()[tokens.layer].group;
  const auto rung_of = [&](uint32_t block) {
    return RungOf(space_->groups()[group], write_rungs_.OfBlock(block, block_tokens_));
  };
  const uint32_t first = tokens.begin / block_tokens_;
  const uint32_t last =
      tokens.count > 0 ? (tokens.begin + tokens.count - 1) / block_tokens_ : first;
  for (const uint32_t block : {first, last}) {
    const uint32_t format = write_rungs_.OfBlock(block, block_tokens_);
    if (format < space_->formats()) continue;
    return absl::InvalidArgumentError(absl::StrCat("write_packed: write_format is ", format,
                                                   ", the layers have ", space_->formats()));
  }
  const uint32_t rung = rung_of(first);
  if (rung_of(last) != rung) {
    return absl::FailedPreconditionError(absl::StrCat("write_packed: block ", first,
                                                      " is written in format ", rung, ", block ",
                                                      last, " in ", rung_of(last)));
  }
  if (tokens.count > 0 && tokens.begin % block_tokens_ != 0 && first == first_own_block() &&
      cached_tokens_ % block_tokens_ != 0 && load_->page(group, first).rung != rung) {
    return absl::FailedPreconditionError(
        absl::StrCat("write_packed: the cached tokens of block ", first, " are in format ",
                     load_->page(group, first).rung, ", the new bytes in ", rung));
  }
  return rung;
}

absl::Status SequencePages::WritePacked(const LayerTokens& tokens, const PackedView& key,
                                        const PackedView& value) {
  const LayerPlace place = space_->layers()[tokens.layer];
  const block::LayerGroup& group = space_->groups()[place.group];
  PREFIXD_RETURN_IF_ERROR(CheckAppend(tokens));
  PREFIXD_ASSIGN_OR_RETURN(const uint32_t rung, RungOfPacked(tokens));
  PREFIXD_RETURN_IF_ERROR(CheckParts("write_packed", group, rung, key, value));
  return ForEachOwn(tokens, [&](Own& own, uint32_t slot, uint32_t row, uint32_t count) {
    CopyIntoPage({.group = group,
                  .rung = own.place.rung,
                  .layer = place.index,
                  .page_tokens = block_tokens_,
                  .first_slot = slot,
                  .first_row = row,
                  .tokens = count,
                  .tensor_tokens = tokens.count},
                 key, value, own.memory.get());
  });
}

absl::Status SequencePages::CheckHere(const LayerTokens& tokens) const {
  const LayerPlace place = space_->layers()[tokens.layer];
  const uint32_t have = space_->IsState(place.group) ? 0 : layers_[space_->owner(tokens.layer)].end;
  if (tokens.begin > have || tokens.count > have - tokens.begin) {
    return absl::InvalidArgumentError(absl::StrCat("gather: tokens ", tokens.begin, " to ",
                                                   uint64_t{tokens.begin} + tokens.count,
                                                   ", the layer has ", have));
  }
  if (tokens.count == 0) return absl::OkStatus();
  const uint32_t last = (tokens.begin + tokens.count - 1) / block_tokens_;
  for (uint32_t b = tokens.begin / block_tokens_; b <= last; ++b) {
    if (PlaceOf(place.group, b).bytes != nullptr) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("gather: block ", b,
                     " of the sliding layer is not here, its window and "
                     "sinks are"));
  }
  return absl::OkStatus();
}

template <typename Visit>
void SequencePages::ForEachHere(const LayerTokens& tokens, Visit visit) const {
  const LayerPlace place = space_->layers()[tokens.layer];
  const uint32_t end = tokens.begin + tokens.count;
  for (uint32_t at = tokens.begin; at < end;) {
    const uint32_t slot = at % block_tokens_, count = std::min(end - at, block_tokens_ - slot);
    const CachedPage from = PlaceOf(place.group, at / block_tokens_);
    visit(PageRows{.group = space_->groups()[place.group],
                   .rung = from.rung,
                   .layer = place.index,
                   .page_tokens = from.page_tokens,
                   .first_slot = slot,
                   .first_row = at - tokens.begin,
                   .tokens = count,
                   .tensor_tokens = tokens.count},
          from.bytes);
    at += count;
  }
}

absl::Status SequencePages::Gather(const LayerTokens& tokens, const MutablePackedView& key,
                                   const MutablePackedView& value) const {
  PREFIXD_RETURN_IF_ERROR(CheckHere(tokens));
  if (tokens.count == 0) return absl::OkStatus();
  const uint32_t group = space_->layers()[tokens.layer].group;
  const uint32_t first = tokens.begin / block_tokens_;
  const uint32_t last = (tokens.begin + tokens.count - 1) / block_tokens_;
  const uint32_t rung = PlaceOf(group, first).rung;
  for (uint32_t b = first; b <= last; ++b) {
    if (PlaceOf(group, b).rung == rung) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "gather: block ", b, " is in format ", PlaceOf(group, b).rung, ", the first in ", rung));
  }
  PREFIXD_RETURN_IF_ERROR(CheckParts("gather", space_->groups()[group], rung, key, value));
  const Caches caches = PayloadBytes(tokens) >= kPastCachesFrom ? Caches::kPast : Caches::kThrough;
  ForEachHere(tokens, [&](const PageRows& rows, const std::byte* page) {
    CopyOutOfPage(rows, page, caches, key, value);
  });
  if (caches == Caches::kPast) base::StreamFence();
  return absl::OkStatus();
}

absl::Status SequencePages::GatherRows(const LayerTokens& tokens, const MutableTensorView& key,
                                       const MutableTensorView& value) const {
  PREFIXD_RETURN_IF_ERROR(CheckHere(tokens));
  if (tokens.count == 0) return absl::OkStatus();
  const block::LayerGroup& group = space_->groups()[space_->layers()[tokens.layer].group];
  PREFIXD_RETURN_IF_ERROR(CheckTensors("gather_rows", group, key, value));
  const Caches caches = PayloadBytes(tokens) >= kPastCachesFrom ? Caches::kPast : Caches::kThrough;
  ForEachHere(tokens, [&](const PageRows& rows, const std::byte* page) {
    DequantizeOutOfPage(rows, page, caches, key, value);
  });
  if (caches == Caches::kPast) base::StreamFence();
  return absl::OkStatus();
}

uint64_t SequencePages::PayloadBytes(const LayerTokens& tokens) const {
  uint64_t bytes = 0, row = 0;
  uint32_t rung = ~uint32_t{0};  // of `row`, computed once for all blocks that are alike
  ForEachHere(tokens, [&](const PageRows& rows, const std::byte*) {
    const block::LayerGroup& group = rows.group;
    if (rows.rung != rung) {
      rung = rows.rung;
      row = quant::BytesOfStoredRow(group.ladder[rung].key, group.key_dim).total();
      if (block::StoresValues(group)) {
        row += quant::BytesOfStoredRow(group.ladder[rung].value, group.value_dim).total();
      }
    }
    bytes += row * group.kv_heads * rows.tokens;
  });
  return bytes;
}

CachedPage SequencePages::PlaceOf(uint32_t group, uint32_t block) const {
  if (block >= first_own_block() && block - first_own_block() < own_[group].size()) {
    return own_[group][block - first_own_block()].place;
  }
  return load_->page(group, block);
}

std::span<const BlockTableEntry> SequencePages::Table(uint32_t layer) {
  layer = space_->owner(layer);
  LayerState& state = layers_[layer];
  const LayerPlace place = space_->layers()[layer];
  const block::LayerGroup& group = space_->groups()[place.group];
  if (space_->IsState(place.group)) return {};
  const uint32_t blocks = (state.end + block_tokens_ - 1) / block_tokens_;
  state.table.resize(blocks);
  uint32_t rung = ~uint32_t{0}, page_tokens = 0;
  uint64_t units = 0;  // offset of the layer's units in pages of that rung and geometry
  for (uint32_t b = state.settled; b < blocks; ++b) {
    const CachedPage from = PlaceOf(place.group, b);
    if (from.bytes == nullptr) {
      state.table[b] = {.page_tokens = block_tokens_, .tokens = block_tokens_};
      continue;
    }
    if (from.rung != rung || from.page_tokens != page_tokens) {
      rung = from.rung;
      page_tokens = from.page_tokens;
      units = block::KeyUnitOffset(group, block::LayoutOfPage(group, rung, page_tokens),
                                   place.index, 0);
    }
    state.table[b] = {
        .units = from.bytes + units,
        .arena_offset = from.arena_offset == kPrivate ? kPrivate : from.arena_offset + units,
        .page_tokens = page_tokens,
        .tokens = std::min(block_tokens_, state.end - b * block_tokens_),
        .format = rung};
  }
  state.settled = state.end / block_tokens_;
  return state.table;
}

bool SequencePages::IsOwn(uint32_t group, uint32_t block) const {
  return block >= first_own_block() && block - first_own_block() < own_[group].size() &&
         own_[group][block - first_own_block()].memory;
}

OwnPages::Page SequencePages::own_page(uint32_t group, uint32_t block) const {
  if (!IsOwn(group, block)) return {};
  const Own& own = own_[group][block - first_own_block()];
  return {.memory = own.memory, .rung = own.place.rung};
}

bool SequencePages::Swap(uint32_t group, uint32_t block, const CachedPage& page) {
  if (!IsOwn(group, block) || (block + 1) * block_tokens_ > complete_tokens()) return false;
  Own& own = own_[group][block - first_own_block()];
  if (page.page_tokens != block_tokens_ || page.rung != own.place.rung) return false;
  own.place = page;
  own.memory = {};
  Unsettle(group, block);
  return true;
}

uint64_t SequencePages::in_place_bytes() const {
  uint64_t bytes = 0;
  const uint32_t blocks = (complete_tokens() + block_tokens_ - 1) / block_tokens_;
  for (uint32_t group = 0; group < own_.size(); ++group) {
    // A state group has one page.
    const uint32_t pages = !space_->IsState(group) ? blocks : cached_tokens_ > 0 ? 1 : 0;
    for (uint32_t b = 0; b < pages; ++b) {
      const CachedPage page = space_->IsState(group) ? load_->page(group, 0) : PlaceOf(group, b);
      if (page.arena_offset == kPrivate) continue;
      bytes += block::LayoutOfPage(space_->groups()[group], page.rung, page.page_tokens).page_bytes;
    }
  }
  return bytes;
}

uint64_t SequencePages::rungs_used(uint32_t group) const {
  const block::LayerGroup& layers = space_->groups()[group];
  uint64_t mask = 0;
  const uint32_t cached_blocks = (cached_tokens_ + block_tokens_ - 1) / block_tokens_;
  if (space_->IsState(group)) return 0;
  for (uint32_t b = 0; b < cached_blocks; ++b) {
    const CachedPage page = load_->page(group, b);
    if (page.bytes != nullptr) mask |= uint64_t{1} << page.rung;
  }
  for (const Own& own : own_[group]) mask |= uint64_t{1} << own.place.rung;
  // A sliding group may have no page at all.
  return mask != 0 ? mask | RungsOf(layers, write_rungs_.coarser) : RungsOf(layers, ~uint64_t{0});
}

}  // namespace prefixd::client
