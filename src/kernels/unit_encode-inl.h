// Floats to codes of a byte each, scales and biases, for one SIMD target: included once per target.
#if defined(PREFIXD_KERNELS_UNIT_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_UNIT_ENCODE_INL_H_
#undef PREFIXD_KERNELS_UNIT_ENCODE_INL_H_
#else
#define PREFIXD_KERNELS_UNIT_ENCODE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/group_encoders-inl.h"
#include "kernels/stream_line-inl.h"
#include "kernels/unit_step.h"
#include "quant/codec.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

HWY_INLINE void PrefetchElements(const std::byte* from, size_t count) {
  for (size_t i = 0; i < count; i += 64) __builtin_prefetch(from + i, /*rw=*/0, /*locality=*/2);
}

// Where the rows of a step's tokens begin.
struct ElementRows {
  const std::byte* first = nullptr;
  size_t stride = 0;  // bytes from a token to the next
};

// Stores the first `count` lanes as elements of `dtype`.
HWY_INLINE void NarrowLanes(quant::Dtype dtype, VF lanes, size_t count, std::byte* to) {
  alignas(64) float values[kLanes];
  hn::Store(lanes, DF(), values);
  if (count != kLanes) return quant::NarrowFromFloat(dtype, values, count, to);
  Narrow(dtype, values, kLanes, to);
}

template <class Elements, class Encoder>
class StepEncoder {
 public:
  HWY_INLINE StepEncoder(const UnitStep& step, const ElementRows& rows, const Encoder& encoder)
      : step_(step),
        rows_(rows),
        encoder_(encoder),
        size_(step.shape.format.group_size),
        groups_(step.groups()),
        ahead_((3 * kLanes + groups_ - 1) / groups_ * rows.stride) {}

  // The parameters of the next batch are computed while codes of this one are: divisions take long.
  HWY_INLINE void Run(const Parts& to, PendingLines* pending) const {
    const size_t count = groups_ * step_.count;
    const bool aligned = LinesAreAligned(*pending);
    PendingLines lines = *pending;
    Batch batches[2];
    Prepare(0, count, to, &batches[0]);
    for (size_t done = 0; done < count; done += kLanes) {
      const Batch& batch = batches[done / kLanes % 2];
      if (done + kLanes < count) {
        Prepare(done + kLanes, count, to, &batches[(done / kLanes + 1) % 2]);
      }
      uint8_t* codes = to.codes + done * size_;
      for (size_t g = 0; g < batch.groups.count; ++g, codes += size_) {
        PrefetchElements(batch.elements[g] + ahead_, size_ * Elements::kBytes);
        encoder_.Encode(
            batch.groups.first[g], size_,
            {batch.factors[g], batch.offsets[g], batch.inverses[g], batch.inverse_rests[g]}, codes);
        // As fast as codes are made, and a little faster.
        for (size_t i = 0; i <= size_ / kLineBytes && aligned && lines.bytes > 0; ++i) {
          WriteLine(&lines);
        }
      }
    }
    *pending = lines;
  }

 private:
  // Up to kLanes groups, and what their codes are computed with.
  struct Batch {
    const std::byte* elements[kLanes];  // in the tensor
    Groups groups;
    alignas(64) float factors[kLanes], offsets[kLanes], inverses[kLanes], inverse_rests[kLanes];
    alignas(64) float widened[Elements::kBytes == sizeof(float) ? 1 : kLanes * 128];
  };

  // Of groups from `begin` on; stores their scales and biases.
  HWY_INLINE void Prepare(size_t begin, size_t end, const Parts& to, Batch* batch) const {
    const DF df;
    Groups& groups = batch->groups;
    groups.size = size_;
    groups.count = HWY_MIN(kLanes, end - begin);
    const std::byte* row = rows_.first + begin / groups_ * rows_.stride;
    size_t in_row = begin % groups_;
    for (size_t i = 0; i < groups.count; ++i) {
      groups.first[i] = batch->elements[i] = row + in_row * size_ * Elements::kBytes;
      if (++in_row == groups_) {
        in_row = 0;
        row += rows_.stride;
      }
    }
    const Extremes extremes = FindExtremes<Elements>(&groups, batch->widened);
    const Fit fit = encoder_.FitGroups(groups, extremes.low, extremes.high);
    const quant::Dtype dtype = step_.shape.format.scale_dtype;
    NarrowLanes(dtype, fit.scale, groups.count, to.scales + begin * step_.scale_bytes());
    if (step_.has_biases()) {
      NarrowLanes(dtype, fit.bias, groups.count, to.biases + begin * step_.scale_bytes());
    }
    hn::Store(fit.factor, df, batch->factors);
    hn::Store(fit.offset, df, batch->offsets);
    hn::Store(fit.inverse, df, batch->inverses);
    hn::Store(fit.inverse_rest, df, batch->inverse_rests);
  }

  const UnitStep& step_;
  const ElementRows& rows_;
  const Encoder& encoder_;
  const size_t size_, groups_;
  const size_t ahead_;  // three batches: memory is read while codes are computed, not only before
};

template <class Elements>
HWY_INLINE void EncodeElements(const UnitStep& step, const ElementRows& rows, const Parts& to,
                               PendingLines* pending) {
  const uint8_t bits = step.shape.format.bits;
  switch (step.shape.format.codec) {
    case quant::Codec::kRaw:
    case quant::Codec::kMxFp4:
    case quant::Codec::kMxFp8:
    case quant::Codec::kNvFp4:
      return;
    case quant::Codec::kMlxAffine:
      return StepEncoder<Elements, AffineEncoder>(step, rows, AffineEncoder(bits)).Run(to, pending);
    case quant::Codec::kQ8_0:
      return StepEncoder<Elements, ByteEncoder>(step, rows, ByteEncoder()).Run(to, pending);
    case quant::Codec::kQ4_0:
    case quant::Codec::kQ5_0:
      return StepEncoder<Elements, CenteredEncoder>(step, rows, CenteredEncoder(bits))
          .Run(to, pending);
    case quant::Codec::kQ4_1:
    case quant::Codec::kQ5_1:
      return StepEncoder<Elements, MinimumEncoder>(step, rows, MinimumEncoder(bits))
          .Run(to, pending);
  }
}

// Requires: the format has integer codes.
inline HWY_ATTR void EncodeStep(const UnitStep& step, quant::Dtype dtype, const ElementRows& rows,
                                const Parts& to, PendingLines* pending) {
  switch (dtype) {
    case quant::Dtype::kF32:
      return EncodeElements<FloatElements>(step, rows, to, pending);
    case quant::Dtype::kF16:
      return EncodeElements<HalfElements>(step, rows, to, pending);
    case quant::Dtype::kBf16:
      return EncodeElements<Bf16Elements>(step, rows, to, pending);
  }
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
