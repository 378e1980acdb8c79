#include "kernels/decode/decode.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "kernels/common/pieces.h"
#include "kernels/common/scratch.h"
#include "kernels/decode/formats.h"

namespace prefixd::kernels {
namespace {

// Fewer tokens times kv heads are not worth waking a thread for.
constexpr uint64_t kThreadedTokens = 512;
struct Call {
  DecodeJob job;
  std::vector<DecodeFormat> formats;
  std::vector<DecodeQueries> queries;
  std::vector<DecodeRow> rows;
  std::vector<DecodeSequence> sequences;
  std::vector<DecodeScratch> scratches;  // one for each thread
  ScratchMemory memory;
};

void TakeScratch(const Call& call, ScratchParts* parts, DecodeScratch* scratch) {
  uint32_t key_groups = 0, value_groups = 0;
  uint64_t key_tile = 0, value_tile = 0;
  for (const DecodeFormat& format : call.formats) {
    if (format.key.in_rows) key_tile = std::max(key_tile, format.key.tile_layout.unit_bytes);
    if (format.value.in_rows) {
      value_tile = std::max(value_tile, format.value.tile_layout.unit_bytes);
    }
    key_groups = std::max(key_groups, format.key.groups);
    value_groups = std::max(value_groups, format.value.groups);
  }
  parts->Take(scratch->key_scales, size_t{key_groups} * kTileTokens);
  parts->Take(scratch->key_biases, size_t{key_groups} * kTileTokens);
  parts->Take(scratch->value_scales, size_t{value_groups} * kTileTokens);
  parts->Take(scratch->value_biases, size_t{value_groups} * kTileTokens);
  parts->Take(scratch->scores, size_t{kStripHeads} * kTileTokens);
  parts->Take(scratch->lanes, size_t{16} * 16);
  parts->Take(scratch->codes, size_t{2} * 16 * kTileTokens);
  parts->Take(scratch->key_tile, key_tile);
  parts->Take(scratch->value_tile, value_tile);
}

// Points all of a call's parts into `memory` unless null. Returns the bytes that they take.
size_t TakeMemory(std::byte* memory, Call* call) {
  ScratchParts parts(memory);
  DecodeJob& job = call->job;
  const size_t row_heads = job.row_heads();
  for (size_t i = 0; i < call->formats.size(); ++i) {
    const DecodeFormat& format = call->formats[i];
    if (format.key.format == nullptr) continue;  // no block uses it
    if (format.key.raw) {
      parts.Take(call->queries[i].floats, row_heads * format.key.dim);
      continue;
    }
    parts.Take(call->queries[i].codes, format.digits * row_heads * format.key.dim);
    parts.Take(call->queries[i].terms, row_heads * format.key.groups);
  }
  for (DecodeScratch& scratch : call->scratches) TakeScratch(*call, &parts, &scratch);
  parts.Take(job.sums.references, kSlots * row_heads);
  parts.Take(job.sums.weights, kSlots * row_heads * 16);
  parts.Take(job.sums.values, kSlots * row_heads * job.value_pitch);
  return parts.bytes();
}

absl::Status AllocateMemory(Call* call) {
  PREFIXD_ASSIGN_OR_RETURN(call->memory, AllocateScratch(TakeMemory(nullptr, call)));
  TakeMemory(call->memory.get(), call);
  return absl::OkStatus();
}

// How the slots and kv heads are cut into parts; the cut does not change any result.
struct Plan {
  std::vector<uint32_t> slots;
  uint32_t heads_per_part = 1;
  uint32_t parts = 1;
  uint32_t threads = 1;
};

// Returns the slots of tokens [begin, end), not empty: bit s is slot s.
uint32_t SlotsOf(uint64_t begin, uint64_t end) {
  const uint64_t first = begin / kRunTokens;
  const uint64_t last = std::min((end - 1) / kRunTokens, first + kSlots - 1);
  uint32_t slots = 0;
  for (uint64_t run = first; run <= last; ++run) slots |= 1u << (run % kSlots);
  return slots;
}

// The slots of the tokens that rows from `first_position` on see, and the number of these tokens.
struct SeenContext {
  uint32_t slots = 0;
  uint64_t tokens = 0;
};
SeenContext SeenFrom(const AttentionShape& shape, uint64_t first_position) {
  const uint64_t end = first_position + shape.query_rows;
  const uint64_t begin = WindowBegin(shape, first_position);
  const uint64_t sinks = std::min<uint64_t>(shape.sink_tokens, begin);
  return {SlotsOf(begin, end) | (sinks == 0 ? 0 : SlotsOf(0, sinks)), end - begin + sinks};
}

Plan MakePlan(const AttentionShape& shape, const SeenContext& seen) {
  Plan plan;
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    if ((seen.slots >> slot & 1) != 0) plan.slots.push_back(slot);
  }
  if (seen.tokens * shape.kv_heads >= kThreadedTokens) plan.threads = shape.threads;
  plan.heads_per_part = shape.kv_heads;
  const auto parts = [&] {
    return static_cast<uint32_t>(plan.slots.size()) *
           ((shape.kv_heads + plan.heads_per_part - 1) / plan.heads_per_part);
  };
  // Parts differ in length, so each thread gets a few.
  const uint64_t wanted = plan.threads == 1 ? 1 : uint64_t{4} * plan.threads;
  while (plan.heads_per_part > 1 && parts() < wanted) {
    plan.heads_per_part = (plan.heads_per_part + 1) / 2;
  }
  plan.parts = parts();
  plan.threads = std::min(plan.threads, plan.parts);
  return plan;
}

void RunParts(const Call& call, const Plan& plan) {
  const uint64_t per_slot = plan.parts / plan.slots.size();
  ForEachPiece(plan.threads, plan.parts, [&](uint64_t i, uint32_t thread) {
    const uint32_t first_head = static_cast<uint32_t>(i % per_slot) * plan.heads_per_part;
    RunDecodePart(call.job,
                  {.slot = plan.slots[i / per_slot],
                   .first_head = first_head,
                   .end_head = std::min(first_head + plan.heads_per_part, call.job.shape.kv_heads)},
                  call.scratches[thread]);
  });
}

void UseFormats(quant::BlockTable table, std::span<const quant::KvFormat> formats, Call* call) {
  call->formats.resize(formats.size());
  call->queries.resize(formats.size());
  for (const quant::BlockTableEntry& entry : table) {
    if (entry.units == nullptr) continue;  // no row sees it
    DecodeFormat& format = call->formats[entry.format];
    if (format.key.format != nullptr) continue;
    format =
        DecodeFormatOf(formats[entry.format], call->job.shape.key_dim, call->job.shape.value_dim);
  }
}

// Returns the items in an order in which tables that begin with the same units stand side by side.
std::vector<const BatchItem*> SideBySide(std::span<const BatchItem> items) {
  std::vector<const BatchItem*> order;
  for (const BatchItem& item : items) order.push_back(&item);
  std::stable_sort(order.begin(), order.end(), [](const BatchItem* a, const BatchItem* b) {
    return std::lexicographical_compare(
        a->table.begin(), a->table.end(), b->table.begin(), b->table.end(),
        [](const quant::BlockTableEntry& x, const quant::BlockTableEntry& y) {
          return std::less<>()(x.units, y.units);
        });
  });
  return order;
}

void AddSequence(const BatchItem& item, const AttentionShape& shape, Call* call) {
  const uint32_t first = static_cast<uint32_t>(call->rows.size());
  call->sequences.push_back(
      {.blocks = item.table, .first_row = first, .end_row = first + shape.query_rows});
  for (uint32_t r = 0; r < shape.query_rows; ++r) {
    call->rows.push_back({.q = item.q + r * shape.query_row_stride,
                          .out = item.out + r * shape.out_row_stride,
                          .position = uint64_t{item.first_position} + r});
  }
}

}  // namespace

bool CanDecode(quant::BlockTable table, std::span<const quant::KvFormat> formats,
               const AttentionShape& shape) {
  if (shape.query_rows > kMaxDecodeRows || !DecodesCodes()) return false;
  const quant::BlockTableEntry* seen = nullptr;  // a format is looked at only where it changes
  for (const quant::BlockTableEntry& entry : table) {
    if (entry.units == nullptr) continue;  // no row sees it
    if (seen == nullptr || seen->format != entry.format) {
      if (!HasFastDecode(formats[entry.format], shape.key_dim, shape.value_dim)) return false;
    }
    seen = &entry;
  }
  return true;
}

absl::Status Decode(std::span<const BatchItem> items, std::span<const quant::KvFormat> formats,
                    const AttentionShape& shape) {
  Call call;
  for (const BatchItem* item : SideBySide(items)) AddSequence(*item, shape, &call);
  call.job.formats = formats;
  call.job.rows = call.rows;
  call.job.shape = shape;
  call.job.sequences = call.sequences;
  call.job.value_pitch = (size_t{shape.value_dim} + 15) / 16 * 16;
  SeenContext seen;  // of the items together
  for (const BatchItem& item : items) {
    UseFormats(item.table, formats, &call);
    const SeenContext own = SeenFrom(shape, item.first_position);
    seen.slots |= own.slots;
    seen.tokens = std::max(seen.tokens, own.tokens);
  }
  call.job.slots = seen.slots;
  const Plan plan = MakePlan(shape, seen);
  call.scratches.resize(plan.threads);
  PREFIXD_RETURN_IF_ERROR(AllocateMemory(&call));
  call.job.tensors = call.formats;
  call.job.queries = call.queries;
  for (uint32_t i = 0; i < call.formats.size(); ++i) {
    if (call.formats[i].key.format != nullptr) PrepareQueries(call.job, i);
  }
  RunParts(call, plan);
  MergeSlots(call.job);
  return absl::OkStatus();
}

}  // namespace prefixd::kernels
