// Encodes floats as byte codes, scales and biases, for one SIMD target: included once per target.
#if defined(PREFIXD_KERNELS_CONVERT_UNIT_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_CONVERT_UNIT_ENCODE_INL_H_
#undef PREFIXD_KERNELS_CONVERT_UNIT_ENCODE_INL_H_
#else
#define PREFIXD_KERNELS_CONVERT_UNIT_ENCODE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/convert/group_encoders-inl.h"
#include "kernels/convert/stream_line-inl.h"
#include "kernels/convert/unit_step.h"
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

template <class Elements, class Encoder>
class StepEncoder {
 public:
  HWY_INLINE StepEncoder(const UnitStep& step, const ElementRows& rows, const Encoder& encoder)
      : step_(step),
        rows_(rows),
        encoder_(encoder),
        size_(step.shape.format.group_size),
        groups_(step.groups()) {}

  HWY_INLINE void Run(const Parts& to, PendingLines* pending) const {
    const size_t count = groups_ * step_.count;
    const size_t scale_bytes = step_.scale_bytes();
    Batch batch;
    for (size_t done = 0; done < count; done += batch.count) {
      batch.count = HWY_MIN(kBatchGroups, count - done);
      Locate(done, &batch);
      batch.divides = false;
      for (size_t first = 0; first < batch.count; first += kLanes) SearchLanes(first, &batch);
      for (size_t first = 0; first < batch.count; first += kLanes) FitLanes(first, &batch);
      const quant::Dtype dtype = step_.shape.format.dtype;
      Narrow(dtype, batch.scales, batch.count, to.scales + done * scale_bytes);
      if (step_.has_biases()) {
        Narrow(dtype, batch.biases, batch.count, to.biases + done * scale_bytes);
      }
      uint8_t* const codes = to.codes + done * size_;
      size_ == 64 ? Encode<64>(batch, codes, pending) : Encode<0>(batch, codes, pending);
    }
  }

 private:
  // Groups that are fitted one vector after the other, then encoded. A fit is four divisions, each
  // of which waits for the one before; divisions of several vectors run side by side.
  static constexpr size_t kBatchGroups = 64;
  struct Batch {
    size_t count;
    const std::byte* first[kBatchGroups];  // in the tensor
    alignas(64) float lows[kBatchGroups], highs[kBatchGroups];
    alignas(64) float scales[kBatchGroups], biases[kBatchGroups];
    alignas(64) float factors[kBatchGroups], offsets[kBatchGroups];
    alignas(64) float inverses[kBatchGroups], inverse_rests[kBatchGroups];
    bool divides;  // a group has no inverse
  };

  // Finds the step's groups from `begin` on in the tensor.
  HWY_INLINE void Locate(size_t begin, Batch* batch) const {
    const size_t bytes = size_ * Elements::kBytes;
    const std::byte* row = rows_.first + begin / groups_ * rows_.stride;
    size_t in_row = begin % groups_;
    for (size_t i = 0; i < batch->count; row += rows_.stride, in_row = 0) {
      const size_t end = HWY_MIN(batch->count, i + groups_ - in_row);
      const std::byte* group = row + in_row * bytes;
      for (; i < end; ++i, group += bytes) batch->first[i] = group;
    }
  }

  HWY_INLINE Groups<Elements> LanesOf(const Batch& batch, size_t first) const {
    return {batch.first + first, HWY_MIN(kLanes, batch.count - first), size_};
  }
  HWY_INLINE void SearchLanes(size_t first, Batch* batch) const {
    const Extremes extremes = FindExtremes(LanesOf(*batch, first));
    hn::Store(extremes.low, DF(), batch->lows + first);
    hn::Store(extremes.high, DF(), batch->highs + first);
  }
  HWY_INLINE void FitLanes(size_t first, Batch* batch) const {
    const DF df;
    const VF low = hn::Load(df, batch->lows + first), high = hn::Load(df, batch->highs + first);
    const Fit fit = encoder_.FitGroups(LanesOf(*batch, first), low, high);
    hn::Store(fit.scale, df, batch->scales + first);
    hn::Store(fit.bias, df, batch->biases + first);
    hn::Store(fit.factor, df, batch->factors + first);
    hn::Store(fit.offset, df, batch->offsets + first);
    hn::Store(fit.inverse, df, batch->inverses + first);
    hn::Store(fit.inverse_rest, df, batch->inverse_rests + first);
    if (!hn::AllFalse(df, hn::Eq(fit.inverse, hn::Zero(df)))) batch->divides = true;
  }

  // kSize: elements of a group if the compiler is to know it, else 0.
  template <size_t kSize>
  HWY_NOINLINE HWY_ATTR void Encode(const Batch& batch, uint8_t* codes,
                                    PendingLines* pending) const {
    // Local copies: stores of codes, which are bytes, could change anything else.
    const Encoder encoder = encoder_;
    const size_t size = kSize == 0 ? size_ : kSize, count = batch.count;
    const bool divides = batch.divides;
    PendingLines lines = *pending;
    const bool sends = LinesAreAligned(lines);
    const size_t ahead = kUnitStepTokens * rows_.stride;
    for (size_t g = 0; g < count; ++g, codes += size) {
      PrefetchElements(batch.first[g] + ahead, size * Elements::kBytes);
      encoder.template Encode<Elements>(batch.first[g], size,
                                        {batch.factors + g, batch.offsets + g, batch.inverses + g,
                                         batch.inverse_rests + g, divides},
                                        codes);
      // Sends lines as fast as codes are made, and a little faster.
      for (size_t i = 0; i <= size / kLineBytes && sends && lines.bytes > 0; ++i) {
        WriteLine(&lines);
      }
    }
    *pending = lines;
  }

  const UnitStep& step_;
  const ElementRows& rows_;
  const Encoder& encoder_;
  const size_t size_, groups_;
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
