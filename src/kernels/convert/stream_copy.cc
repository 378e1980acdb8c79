#include "kernels/convert/stream_copy.h"

#include <cstdint>
#include <cstring>
#include <utility>

namespace prefixd::kernels {
namespace {

using base::kLineBytes;

std::byte* NextLine(std::byte* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  return memory + (kLineBytes - address % kLineBytes) % kLineBytes;
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

bool LinesAreAligned(const PendingLines& lines) {
  const auto ends = reinterpret_cast<uintptr_t>(lines.from) | reinterpret_cast<uintptr_t>(lines.to);
  return (ends | lines.bytes) % kLineBytes == 0;
}

void Send(PendingLines* lines) {
  if (LinesAreAligned(*lines)) {
    base::StreamLines(lines->to, lines->from, lines->bytes);
  } else {
    std::memcpy(lines->to, lines->from, lines->bytes);
  }
  lines->bytes = 0;
}

void LinesBeside::StartUnit(PendingLines* to_send, const std::byte* to_ask) {
  sent = to_send;
  asked = to_ask;
  if (pieces != 0) lines_a_piece = sent->bytes / kLineBytes / pieces + 1;
  pieces = 0;
}

UnitOutput::UnitOutput(const quant::UnitShape& shape, const UnitRun& run)
    : unit_bytes_(quant::LayoutOf(shape).unit_bytes) {
  if (!run.stream || run.first_token != 0 || run.tokens != run.page_tokens) return;
  memory_ = MemoryFor(shape, 2 * (unit_bytes_ + kLineBytes));
  building_ = NextLine(memory_.get());
  leaving_ = NextLine(building_ + unit_bytes_);
}

UnitOutput::~UnitOutput() {
  Send(&pending_);
  if (building_ != nullptr) base::StreamFence();
}

void UnitOutput::End(std::byte* unit) {
  if (building_ == nullptr) return;
  Send(&pending_);
  pending_ = {building_, unit, unit_bytes_};
  std::swap(building_, leaving_);
}

}  // namespace prefixd::kernels
