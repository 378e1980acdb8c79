#include "kernels/attention.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "kernels/common/check_attention.h"
#include "kernels/common/pieces.h"
#include "kernels/decode/decode.h"
#include "kernels/decode/order.h"
#include "kernels/prefill/attend_slice.h"

namespace prefixd::kernels {
namespace {

// Rows of a slice share each dequantized tile; their queries and sums should stay in the L2 cache.
constexpr size_t kSliceFloats = size_t{64} << 10;
constexpr size_t kMaxSliceRowHeads = 256;
// Fewer than this many multiplications are not worth starting a thread for.
constexpr uint64_t kThreadedWork = uint64_t{1} << 23;

struct FreeScratch {
  void operator()(std::byte* memory) const {
    ::operator delete[](memory, std::align_val_t(AttendScratch::kAlignment));
  }
};
using ScratchMemory = std::unique_ptr<std::byte[], FreeScratch>;

// Returns null when memory is short.
ScratchMemory AllocateScratch(size_t bytes) {
  ScratchMemory memory(new (std::align_val_t(AttendScratch::kAlignment), std::nothrow)
                           std::byte[bytes]);
  if (memory != nullptr) std::memset(memory.get(), 0, bytes);
  return memory;
}

// Chooses whether codes are multiplied as they are, and in which groups. The groups suit all given
// formats, not only those that blocks use, so that a row's bits never depend on later tokens.
void ChooseArithmetic(std::span<const quant::KvFormat> formats, AttendJob* job) {
  if (!MultipliesCodes()) return;
  uint32_t key_group = job->shape.key_dim, value_group = job->shape.value_dim;
  bool any_codes = false, any_raw = false;
  for (const quant::KvFormat& format : formats) {
    if (HoldsFloats(format)) {
      any_raw = true;
      continue;
    }
    any_codes = true;
    key_group = std::min<uint32_t>(key_group, format.key.group_size);
    value_group = std::min<uint32_t>(value_group, format.value.group_size);
  }
  if (!any_codes) return;
  if (job->shape.key_dim % key_group != 0 || job->shape.value_dim % value_group != 0) return;
  job->any_raw = any_raw;
  job->key_group = key_group;
  job->value_group = value_group;
}

// How a call is cut into slices; the cut does not change any result.
struct Plan {
  uint32_t threads = 1;
  uint32_t rows_per_slice = 1;
  uint32_t slices_per_head = 1;
};

uint32_t DivideUp(uint32_t count, uint32_t by) { return count / by + (count % by != 0 ? 1 : 0); }

Plan MakePlan(const AttendJob& job) {
  const AttentionShape& shape = job.shape;
  const size_t dims = size_t{shape.key_dim} + shape.value_dim;
  const size_t row_heads = std::clamp<size_t>(kSliceFloats / dims, 1, kMaxSliceRowHeads);
  const uint32_t most_rows = static_cast<uint32_t>(std::max<size_t>(1, row_heads / job.group()));
  Plan plan{.rows_per_slice = std::min(most_rows, shape.query_rows)};
  uint64_t seen = uint64_t{shape.first_position} + shape.query_rows;
  if (shape.window != 0) seen = std::min(seen, uint64_t{shape.window} + shape.sink_tokens);
  const double work = 1.0 * shape.query_rows * shape.query_heads * static_cast<double>(dims) *
                      static_cast<double>(seen);
  if (work >= static_cast<double>(kThreadedWork)) plan.threads = shape.threads;
  // Each slice dequantizes its context again, so cut finer only to give every thread work.
  while (plan.rows_per_slice * job.group() > 4 * kMaxTileRows &&
         uint64_t{shape.kv_heads} * DivideUp(shape.query_rows, plan.rows_per_slice) <
             plan.threads) {
    plan.rows_per_slice = DivideUp(plan.rows_per_slice, 2);
  }
  plan.slices_per_head = DivideUp(shape.query_rows, plan.rows_per_slice);
  const uint64_t slices = uint64_t{shape.kv_heads} * plan.slices_per_head;
  plan.threads = static_cast<uint32_t>(std::min<uint64_t>(plan.threads, slices));
  return plan;
}

// memory: `bytes_per_thread` for each thread.
void RunSlices(const AttendJob& job, const Plan& plan, std::byte* memory, size_t bytes_per_thread) {
  const size_t row_heads = size_t{plan.rows_per_slice} * job.group();
  const uint64_t slices = uint64_t{job.shape.kv_heads} * plan.slices_per_head;
  ForEachPiece(plan.threads, slices, [&](uint64_t i, uint32_t thread) {
    const uint32_t first_row =
        static_cast<uint32_t>(i % plan.slices_per_head) * plan.rows_per_slice;
    RunSlice(job,
             {.kv_head = static_cast<uint32_t>(i / plan.slices_per_head),
              .first_row = first_row,
              .rows = std::min(plan.rows_per_slice, job.shape.query_rows - first_row)},
             AttendScratch(job, row_heads, memory + thread * bytes_per_thread));
  });
}

}  // namespace

absl::Status Attend(quant::BlockTable table, std::span<const quant::KvFormat> formats,
                    const float* q, float* out, const AttentionShape& shape) {
  PREFIXD_ASSIGN_OR_RETURN(const AttentionShape checked,
                           CheckAttention(table, formats, q, out, shape));
  if (checked.mode == AttentionMode::kFast && CanDecode(table, formats, checked)) {
    const BatchItem item{
        .table = table, .q = q, .out = out, .first_position = checked.first_position};
    return Decode({&item, 1}, formats, checked);
  }
  AttendJob job{
      .blocks = table.data(), .formats = formats.data(), .q = q, .out = out, .shape = checked};
  ChooseArithmetic(formats, &job);
  const Plan plan = MakePlan(job);
  const size_t bytes = AttendScratch::Bytes(job, size_t{plan.rows_per_slice} * job.group());
  const ScratchMemory memory = AllocateScratch(bytes * plan.threads);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("attend: no memory for ", bytes * plan.threads, " bytes of scratch"));
  }
  RunSlices(job, plan, memory.get(), bytes);
  return absl::OkStatus();
}

const char* FastDecodeOrder() {
  if (!DecodesCodes()) return "none";
  return ToText(DecodesInPipeline() ? OrderOfDecode() : DecodeOrder::kStaged);
}

}  // namespace prefixd::kernels
