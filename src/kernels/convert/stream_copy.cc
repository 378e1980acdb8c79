#include "kernels/convert/stream_copy.h"

#include <cstring>
#include <utility>

#include "kernels/common/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/convert/stream_copy.cc"
#include "hwy/foreach_target.h"  // before the -inl.h file: it includes this file once per target
#include "hwy/highway.h"

#include "kernels/convert/stream_line-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

HWY_ATTR void SendOnTarget(PendingLines* lines, const std::byte* next) {
  if (!LinesAreAligned(*lines)) {
    std::memcpy(lines->to, lines->from, lines->bytes);
    lines->bytes = 0;
    return;
  }
  while (lines->bytes > 0) {
    WriteLine(lines);
    if (next == nullptr) continue;
    hwy::Prefetch(next);
    next += kLineBytes;
  }
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace prefixd::kernels {
namespace {

HWY_EXPORT(SendOnTarget);

constexpr size_t kLine = 64;

std::byte* NextLine(std::byte* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  return memory + (kLine - address % kLine) % kLine;
}

// Allocates `bytes` bytes, zeroed if units have padding.
std::unique_ptr<std::byte[]> MemoryFor(const quant::UnitShape& shape, size_t bytes) {
  const quant::UnitLayout layout = quant::LayoutOf(shape);
  const bool padded =
      layout.slots != shape.page_tokens || layout.payload_bytes != layout.unit_bytes;
  return padded ? std::make_unique<std::byte[]>(bytes)
                : std::make_unique_for_overwrite<std::byte[]>(bytes);
}

}  // namespace

void Send(PendingLines* lines, const std::byte* next) {
  if (lines->bytes > 0) HWY_DYNAMIC_DISPATCH(SendOnTarget)(lines, next);
}

void FinishStream() { hwy::FlushStream(); }

void LinesBeside::StartUnit(PendingLines* to_send, const std::byte* to_ask) {
  sent = to_send;
  asked = to_ask;
  if (pieces != 0) lines_a_piece = sent->bytes / kLine / pieces + 1;
  pieces = 0;
}

UnitOutput::UnitOutput(const quant::UnitShape& shape, const UnitRun& run)
    : unit_bytes_(quant::LayoutOf(shape).unit_bytes) {
  if (!run.stream || run.first_token != 0 || run.tokens != run.page_tokens) return;
  memory_ = MemoryFor(shape, 2 * (unit_bytes_ + kLine));
  building_ = NextLine(memory_.get());
  leaving_ = NextLine(building_ + unit_bytes_);
}

UnitOutput::~UnitOutput() {
  Send(&pending_);
  if (building_ != nullptr) FinishStream();
}

void UnitOutput::End(std::byte* unit) {
  if (building_ == nullptr) return;
  Send(&pending_);
  pending_ = {building_, unit, unit_bytes_};
  std::swap(building_, leaving_);
}

}  // namespace prefixd::kernels
#endif  // HWY_ONCE
