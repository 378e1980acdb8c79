#include <bit>
#include <cfloat>

#include "kernels/common/simd_targets.h"
#include "kernels/decode/job.h"
#include "os/machine.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/decode/part.cc"
#include "hwy/foreach_target.h"  // before the -inl.h files: it includes this file once per target
#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/decode/pipeline_block-inl.h"
#include "kernels/decode/unit-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

#if PREFIXD_KERNELS_HAVE_DECODE

// How many bytes ahead units are asked for: enough for the time that memory takes.
constexpr uint64_t kFarBytes = uint64_t{40} << 10;
// Units of more bytes are not brought into the L1 cache ahead: they would not stay there.
constexpr uint64_t kMostNearBytes = uint64_t{36} << 10;

// Visits the blocks of a part in order, each for all its kv heads, which is the order of the bytes.
// Visits a block once for all sequences that have it at the same place after the same blocks.
class PartWalk {
 public:
  HWY_INLINE PartWalk(const DecodeJob& job, const DecodePart& part, const DecodeScratch& scratch)
      : job_(job), part_(part), scratch_(scratch) {}

  HWY_ATTR void Run() {
    Clear();
    Walk(0, job_.sequences.size(), 0, 0);
    Drain();
    AddOffsets();
  }

 private:
  // Walks sequences [first, end) from block b, at `position`, on. They share all blocks before it.
  HWY_ATTR void Walk(size_t first, size_t end, size_t b, uint64_t position) {
    while (first < end) {
      // [first, same): sequences that go on with the same block as the first one.
      const quant::BlockTable blocks = job_.sequences[first].blocks;
      size_t same = first + 1;
      while (same < end && Continue(job_.sequences[same].blocks, blocks, b)) ++same;
      if (same < end) {
        Walk(first, same, b, position);
        first = same;
        continue;
      }
      if (b == blocks.size() || !IsReached(first, end, position)) return;
      if (position / kRunTokens % kSlots == part_.slot &&
          IsSeen(first, end, position, blocks[b].tokens)) {
        VisitBlock(first, end, b, position);
      }
      position += blocks[b].tokens;
      ++b;
    }
  }
  static HWY_INLINE bool Continue(quant::BlockTable a, quant::BlockTable other, size_t b) {
    if (b >= a.size() || b >= other.size()) return b >= a.size() && b >= other.size();
    return a[b].units == other[b].units && a[b].tokens == other[b].tokens &&
           a[b].page_tokens == other[b].page_tokens && a[b].format == other[b].format;
  }
  // Whether a row stands at `position` or after it.
  HWY_INLINE bool IsReached(size_t first, size_t end, uint64_t position) const {
    for (size_t s = first; s < end; ++s) {
      // Positions grow with a sequence's rows.
      if (position <= job_.rows[job_.sequences[s].end_row - 1].position) return true;
    }
    return false;
  }
  // Whether the window and the sinks let a row see any of the tokens. Requires: IsReached.
  HWY_INLINE bool IsSeen(size_t first, size_t end, uint64_t position, uint32_t tokens) const {
    const AttentionShape& shape = job_.shape;
    if (shape.window == 0 || position < shape.sink_tokens) return true;
    for (size_t s = first; s < end; ++s) {
      // The first row's window begins first.
      const uint64_t row = job_.rows[job_.sequences[s].first_row].position;
      if (position + tokens + shape.window > row + 1) return true;
    }
    return false;
  }

  // Calls `call` with the index in job.sums of each row head of the part.
  template <class Call>
  HWY_INLINE void ForEachRowHead(const Call& call) const {
    const size_t group = job_.rows.size() * job_.group();
    const size_t base = size_t{part_.slot} * job_.row_heads();
    for (size_t i = base + part_.first_head * group; i < base + part_.end_head * group; ++i) {
      call(i);
    }
  }
  static HWY_INLINE void SetZero(float* values, size_t count) {
    for (size_t i = 0; i < count; i += kLanes) hn::StoreU(hn::Zero(DF()), DF(), values + i);
  }
  HWY_INLINE void Clear() {
    const DecodeSums& sums = job_.sums;
    const size_t offsets = size_t{job_.offset_groups} * kLanes;
    ForEachRowHead([&](size_t i) HWY_ATTR {
      sums.references[i] = -FLT_MAX;
      SetZero(sums.weights + i * kLanes, kLanes);
      SetZero(sums.values + i * job_.value_pitch, job_.value_pitch);
      SetZero(sums.offsets + i * offsets, offsets);
    });
  }
  HWY_INLINE void AddOffsets() {
    const DF df;
    ForEachRowHead([&](size_t i) HWY_ATTR {
      const float* offset = job_.sums.offsets + i * job_.offset_groups * kLanes;
      float* value = job_.sums.values + i * job_.value_pitch;
      for (uint32_t g = 0; g < job_.offset_groups; ++g, offset += kLanes) {
        const VF sum = hn::SumOfLanes(df, hn::LoadU(df, offset));
        for (uint32_t c = 0; c < job_.offset_channels; c += kLanes, value += kLanes) {
          hn::StoreU(hn::Add(hn::LoadU(df, value), sum), df, value);
        }
      }
    });
  }

  HWY_INLINE void VisitBlock(size_t first, size_t end, size_t b, uint64_t position) {
    const quant::BlockTable blocks = job_.sequences[first].blocks;
    const quant::BlockTableEntry& block = blocks[b];
    const DecodeFormat& format = job_.tensors[block.format];
    DecodeVisit visit;
    visit.slot = part_.slot;
    visit.first_row = job_.sequences[first].first_row;
    visit.end_row = job_.sequences[end - 1].end_row;
    visit.position = position;
    visit.tokens = block.tokens;
    visit.format = block.format;
    visit.key.layout = quant::LayoutOfUnit(*format.key.format, format.key.dim, block.page_tokens);
    visit.value.layout =
        quant::LayoutOfUnit(*format.value.format, format.value.dim, block.page_tokens);
#if PREFIXD_KERNELS_HAVE_PAIRS
    if (pipeline_.Prepare(format) && PipelinedBlock::Fits(job_, visit)) {
      return VisitPipelined(visit, blocks, b);
    }
#endif
    Drain();
    VisitStaged(&visit, blocks, b);
  }
  HWY_INLINE uint32_t heads() const { return part_.end_head - part_.first_head; }
  // Ends what is still in the pipeline.
  HWY_INLINE void Drain() {
#if PREFIXD_KERNELS_HAVE_PAIRS
    pipeline_.Drain();
#endif
  }

  HWY_INLINE void VisitStaged(DecodeVisit* visit, quant::BlockTable blocks, size_t b) {
    const DecodeFormat& format = job_.tensors[visit->format];
    const uint64_t bytes = visit->key.layout.unit_bytes + visit->value.layout.unit_bytes;
    const bool raw = format.key.raw || format.value.raw;
    const bool has_near = !raw && bytes <= kMostNearBytes;
    const uint64_t far_units = HWY_MAX(kFarBytes / bytes, 1);
    for (uint32_t head = part_.first_head; head < part_.end_head; ++head) {
      const UnitPlace here = UnitOf(*visit, blocks[b], head);
      visit->kv_head = head;
      visit->key.bytes = here.key;
      visit->value.bytes = here.value;
      visit->near_key = has_near ? Later(*visit, blocks, b, head + 1).key : nullptr;
      visit->far = Later(*visit, blocks, b, head + far_units);
      UnitAttention(job_, *visit, scratch_).Run();
    }
  }

#if PREFIXD_KERNELS_HAVE_PAIRS
  // A pipeline asks for lines in the order of the bytes of a whole block, where a block's part is
  // no larger: a long run of lines is read faster than the runs of single units, .72 against .65 of
  // a stream read on Zen 5.
  static constexpr uint64_t kMostBlockBytes = uint64_t{256} << 10;
  HWY_INLINE void VisitPipelined(const DecodeVisit& visit, quant::BlockTable blocks, size_t b) {
    const uint64_t keys = visit.key.layout.unit_bytes, values = visit.value.layout.unit_bytes;
    const bool by_block = (keys + values) * heads() <= kMostBlockBytes;
    const UnitPlace next = Later(visit, blocks, b, part_.end_head);
    const PipelinedBlock block(job_, visit, &pipeline_);
    FarLines far(blocks[b].units);
    if (by_block) far = LaterBlock(visit, blocks, b);
    for (uint32_t head = part_.first_head; head < part_.end_head; ++head) {
      const UnitPlace here = UnitOf(visit, blocks[b], head);
      const std::byte* next_key = here.key + keys;
      if (head + 1 == part_.end_head) next_key = next.key == nullptr ? here.key : next.key;
      if (!by_block) far = LaterUnit(visit, blocks, b, head);
      block.Attend(head, here, next_key, &far);
      if (!by_block) far.AskAll();
    }
    far.AskAll();
  }
  // Return what asks for the lines of a later unit, or of the units of a later block.
  HWY_INLINE FarLines LaterUnit(const DecodeVisit& visit, quant::BlockTable blocks, size_t b,
                                uint32_t head) const {
    const uint64_t keys = visit.key.layout.unit_bytes, values = visit.value.layout.unit_bytes;
    const uint64_t ahead = HWY_MAX(kFarBytes / (keys + values), 1);
    return LinesOf(Later(visit, blocks, b, head + ahead), keys, values, blocks[b].units);
  }
  HWY_INLINE FarLines LaterBlock(const DecodeVisit& visit, quant::BlockTable blocks,
                                 size_t b) const {
    const uint64_t keys = visit.key.layout.unit_bytes * heads();
    const uint64_t values = visit.value.layout.unit_bytes * heads();
    const uint64_t bytes = keys + values;
    // Values are asked for behind all keys: up to half a block late.
    const uint64_t ahead = HWY_MAX((kFarBytes + bytes / 2) / bytes, 1);
    return LinesOf(Later(visit, blocks, b, part_.first_head + ahead * heads()), keys, values,
                   blocks[b].units);
  }
  static HWY_INLINE FarLines LinesOf(const UnitPlace& place, uint64_t keys, uint64_t values,
                                     const std::byte* idle) {
    return place.key == nullptr ? FarLines(idle) : FarLines(place.key, keys, place.value, values);
  }
#endif

  HWY_INLINE UnitPlace UnitOf(const DecodeVisit& visit, const quant::BlockTableEntry& block,
                              uint64_t head) const {
    const uint64_t key_bytes = visit.key.layout.unit_bytes;
    return {block.units + head * key_bytes,
            block.units + job_.shape.kv_heads * key_bytes + head * visit.value.layout.unit_bytes};
  }
  // Returns the unit of `head` in block b; heads past the part's last one count on in the next
  // blocks. Returns nulls if there is none, no row sees it, or its layout is not that of block b.
  HWY_INLINE UnitPlace Later(const DecodeVisit& visit, quant::BlockTable blocks, size_t b,
                             uint64_t head) const {
    size_t later = b;
    for (; head >= part_.end_head; head -= heads()) ++later;
    if (later >= blocks.size()) return {};
    const quant::BlockTableEntry& next = blocks[later];
    if (next.units == nullptr) return {};  // no row sees it
    if (next.format != blocks[b].format || next.page_tokens != blocks[b].page_tokens) return {};
    return UnitOf(visit, next, head);
  }

  const DecodeJob& job_;
  const DecodePart& part_;
  const DecodeScratch& scratch_;
#if PREFIXD_KERNELS_HAVE_PAIRS
  Pipeline pipeline_{job_, scratch_};
#endif
};

HWY_ATTR void RunPartOnTarget(const DecodeJob& job, const DecodePart& part,
                              const DecodeScratch& scratch) {
  PartWalk(job, part, scratch).Run();
}

// Calls `call` with each slot of the job that holds anything, in order.
template <class Call>
HWY_INLINE void ForEachSlot(const DecodeJob& job, const Call& call) {
  for (uint32_t left = job.slots; left != 0; left &= left - 1) {
    call(static_cast<uint32_t>(std::countr_zero(left)));
  }
}

// Merges one row head: slots in order, each by its weight relative to the largest reference. The
// learned sink is one more weight, without a value.
HWY_INLINE void MergeRowHead(const DecodeJob& job, size_t row_head, uint32_t head, float* out) {
  const DF df;
  const bool has_sink = job.shape.sink_logits != nullptr && job.shape.sink_logits[head] >= -FLT_MAX;
  const float sink = has_sink ? job.shape.sink_logits[head] * kLog2E : -FLT_MAX;
  float max = sink;
  ForEachSlot(job, [&](uint32_t s) {
    const float of_slot = job.sums.references[s * job.row_heads() + row_head];
    if (!(of_slot <= max)) max = of_slot;  // NaN too
  });
  float factors[kSlots];
  VF total = hn::Zero(df);
  ForEachSlot(job, [&](uint32_t s) HWY_ATTR {
    const size_t at = s * size_t{job.row_heads()} + row_head;
    const VF factor = WeightExp2(hn::Set(df, job.sums.references[at] - max));
    factors[s] = hn::GetLane(factor);
    total = hn::MulAdd(hn::LoadU(df, job.sums.weights + at * kLanes), factor, total);
  });
  if (has_sink) {
    const VF weight = WeightExp2(hn::Set(df, sink - max));
    total = hn::Add(total, hn::IfThenElseZero(hn::FirstN(df, 1), weight));
  }
  const VF inverse = hn::Div(hn::Set(df, 1), hn::SumOfLanes(df, total));
  for (uint32_t d = 0; d < job.shape.value_dim; d += kLanes) {
    VF sum = hn::Zero(df);
    ForEachSlot(job, [&](uint32_t s) HWY_ATTR {
      const size_t at = s * size_t{job.row_heads()} + row_head;
      sum = hn::MulAdd(hn::LoadU(df, job.sums.values + at * job.value_pitch + d),
                       hn::Set(df, factors[s]), sum);
    });
    const size_t left = job.shape.value_dim - d;
    hn::BlendedStore(hn::Mul(sum, inverse), hn::FirstN(df, left), df, out + d);
  }
}

HWY_ATTR void MergeOnTarget(const DecodeJob& job) {
  const uint32_t group = job.group();
  size_t row_head = 0;
  for (uint32_t kv_head = 0; kv_head < job.shape.kv_heads; ++kv_head) {
    for (const DecodeRow& row : job.rows) {
      for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; ++head, ++row_head) {
        MergeRowHead(job, row_head, head, row.out + head * job.shape.out_head_stride);
      }
    }
  }
}

bool TargetDecodesCodes() { return !PREFIXD_KERNELS_HAVE_SDOT || os::HasDotProduct(); }
bool TargetHasPipeline() { return PREFIXD_KERNELS_HAVE_PAIRS != 0; }

#else

// Never called.
void PrepareQueriesOnTarget(const DecodeJob&, uint32_t) {}
void RunPartOnTarget(const DecodeJob&, const DecodePart&, const DecodeScratch&) {}
void MergeOnTarget(const DecodeJob&) {}
bool TargetDecodesCodes() { return false; }
bool TargetHasPipeline() { return false; }

#endif

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace prefixd::kernels {
namespace {

HWY_EXPORT(PrepareQueriesOnTarget);
HWY_EXPORT(RunPartOnTarget);
HWY_EXPORT(MergeOnTarget);
HWY_EXPORT(TargetDecodesCodes);
HWY_EXPORT(TargetHasPipeline);

}  // namespace

bool DecodesCodes() { return HWY_DYNAMIC_DISPATCH(TargetDecodesCodes)(); }
bool DecodesInPipeline() { return HWY_DYNAMIC_DISPATCH(TargetHasPipeline)(); }
void PrepareQueries(const DecodeJob& job, uint32_t format) {
  HWY_DYNAMIC_DISPATCH(PrepareQueriesOnTarget)(job, format);
}
void RunDecodePart(const DecodeJob& job, const DecodePart& part, const DecodeScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(RunPartOnTarget)(job, part, scratch);
}
void MergeSlots(const DecodeJob& job) { HWY_DYNAMIC_DISPATCH(MergeOnTarget)(job); }

}  // namespace prefixd::kernels
#endif  // HWY_ONCE
