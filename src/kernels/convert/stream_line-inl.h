// Writes one cache line past the caches, for one SIMD target: included once per target.
#if defined(PREFIXD_KERNELS_CONVERT_STREAM_LINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_CONVERT_STREAM_LINE_INL_H_
#undef PREFIXD_KERNELS_CONVERT_STREAM_LINE_INL_H_
#else
#define PREFIXD_KERNELS_CONVERT_STREAM_LINE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"

#include "kernels/convert/stream_copy.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

inline constexpr size_t kLineBytes = 64;

HWY_INLINE bool LinesAreAligned(const PendingLines& lines) {
  const auto ends = reinterpret_cast<uintptr_t>(lines.from) | reinterpret_cast<uintptr_t>(lines.to);
  return (ends | lines.bytes) % kLineBytes == 0;
}

// Requires: LinesAreAligned, at least one line is left.
HWY_INLINE void WriteLine(PendingLines* lines) {
  const hwy::HWY_NAMESPACE::CappedTag<uint8_t, kLineBytes> d;
  const auto* from = reinterpret_cast<const uint8_t*>(lines->from);
  auto* to = reinterpret_cast<uint8_t*>(lines->to);
  for (size_t i = 0; i < kLineBytes; i += hwy::HWY_NAMESPACE::Lanes(d)) {
    hwy::HWY_NAMESPACE::Stream(hwy::HWY_NAMESPACE::Load(d, from + i), d, to + i);
  }
  lines->from += kLineBytes;
  lines->to += kLineBytes;
  lines->bytes -= kLineBytes;
}

// Called between two pieces of the work: sends and asks for lines. Null: does nothing.
class SendBeside {
 public:
  explicit HWY_INLINE SendBeside(LinesBeside* lines) : lines_(lines) {}
  HWY_INLINE void operator()() const {
    if (lines_ == nullptr) return;
    ++lines_->pieces;
    PendingLines sent = *lines_->sent;
    const std::byte* asked = lines_->asked;
    const bool sends = LinesAreAligned(sent);
    for (size_t i = lines_->lines_a_piece; i != 0; --i) {
      if (sends && sent.bytes != 0) WriteLine(&sent);
      if (asked == nullptr) continue;
      hwy::Prefetch(asked);
      asked += kLineBytes;
    }
    *lines_->sent = sent;
    lines_->asked = asked;
  }

 private:
  LinesBeside* const lines_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that flips with the target
