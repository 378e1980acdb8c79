#include "kernels/decode/decode.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/common/pieces.h"
#include "kernels/decode/formats.h"

namespace prefixd::kernels {
namespace {

// Fewer tokens times kv heads are not worth waking a thread for.
constexpr uint64_t kThreadedTokens = 512;
constexpr size_t kAlignment = 64;

struct FreeMemory {
  void operator()(std::byte* memory) const {
    ::operator delete[](memory, std::align_val_t(kAlignment));
  }
};
using Memory = std::unique_ptr<std::byte[], FreeMemory>;

// Hands out pieces of `memory`. If null, only adds up their sizes.
class Pieces {
 public:
  explicit Pieces(std::byte* memory) : memory_(memory) {}
  template <typename T>
  void Take(T*& piece, size_t count) {
    if (memory_ != nullptr) piece = reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* const memory_;
  size_t bytes_ = 0;
};

struct Call {
  DecodeJob job;
  std::vector<DecodeFormat> formats;
  std::vector<DecodeQueries> queries;
  std::vector<DecodeRow> rows;
  std::vector<DecodeSequence> sequences;
  std::vector<DecodeScratch> scratches;  // one for each thread
  Memory memory;
};

void TakeScratch(const Call& call, Pieces* pieces, DecodeScratch* scratch) {
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
  pieces->Take(scratch->key_scales, size_t{key_groups} * kDecodeTile);
  pieces->Take(scratch->key_biases, size_t{key_groups} * kDecodeTile);
  pieces->Take(scratch->value_scales, size_t{value_groups} * kDecodeTile);
  pieces->Take(scratch->value_biases, size_t{value_groups} * kDecodeTile);
  pieces->Take(scratch->scores, size_t{kStripHeads} * kDecodeTile);
  pieces->Take(scratch->products, size_t{16} * kDecodeTile);
  pieces->Take(scratch->lanes, size_t{16} * 16);
  pieces->Take(scratch->codes, size_t{2} * 16 * kDecodeTile);
  pieces->Take(scratch->key_tile, key_tile);
  pieces->Take(scratch->value_tile, 2 * value_tile);
}

// Points all of a call's pieces into `memory` unless null. Returns the bytes that they take.
size_t TakeMemory(std::byte* memory, Call* call) {
  Pieces pieces(memory);
  DecodeJob& job = call->job;
  const size_t row_heads = job.row_heads();
  for (size_t i = 0; i < call->formats.size(); ++i) {
    const DecodeFormat& format = call->formats[i];
    if (format.key.format == nullptr) continue;  // no block uses it
    if (format.key.raw) {
      pieces.Take(call->queries[i].floats, row_heads * format.key.dim);
      continue;
    }
    pieces.Take(call->queries[i].codes, kMostCodeBytes * row_heads * format.key.dim);
    pieces.Take(call->queries[i].terms, row_heads * format.key.groups);
  }
  for (DecodeScratch& scratch : call->scratches) TakeScratch(*call, &pieces, &scratch);
  pieces.Take(job.sums.references, kSlots * row_heads);
  pieces.Take(job.sums.weights, kSlots * row_heads * 16);
  pieces.Take(job.sums.values, kSlots * row_heads * job.value_pitch);
  pieces.Take(job.sums.offsets, kSlots * row_heads * job.offset_groups * 16);
  return pieces.bytes();
}

absl::Status AllocateMemory(Call* call) {
  const size_t bytes = TakeMemory(nullptr, call);
  call->memory = Memory(new (std::align_val_t(kAlignment), std::nothrow) std::byte[bytes]);
  if (call->memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("attend: no memory for ", bytes, " bytes of scratch"));
  }
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
  if (shape.window == 0 || first_position < shape.window) return {SlotsOf(0, end), end};
  const uint64_t begin = first_position + 1 - shape.window;
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

void SetOffsets(DecodeJob* job) {
  for (const DecodeFormat& format : job->tensors) {
    if (format.value.format == nullptr || format.value.raw) continue;
    job->offset_channels = std::gcd(job->offset_channels, format.value.group);
  }
  if (job->offset_channels != 0) job->offset_groups = job->shape.value_dim / job->offset_channels;
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
  call.job.tensors = call.formats;
  SetOffsets(&call.job);
  const Plan plan = MakePlan(shape, seen);
  call.scratches.resize(plan.threads);
  if (const absl::Status status = AllocateMemory(&call); !status.ok()) return status;
  call.job.queries = call.queries;
  for (uint32_t i = 0; i < call.formats.size(); ++i) {
    if (call.formats[i].key.format != nullptr) PrepareQueries(call.job, i);
  }
  RunParts(call, plan);
  MergeSlots(call.job);
  return absl::OkStatus();
}

}  // namespace prefixd::kernels
