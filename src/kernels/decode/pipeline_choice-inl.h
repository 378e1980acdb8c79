// Which formats decode is pipelined for, and tiles that come in any order of formats and row heads,
// for one SIMD target: included once per target.
#if defined(PREFIXD_KERNELS_DECODE_PIPELINE_CHOICE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_PIPELINE_CHOICE_INL_H_
#undef PREFIXD_KERNELS_DECODE_PIPELINE_CHOICE_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_PIPELINE_CHOICE_INL_H_
#endif

#include "hwy/highway.h"

#include "kernels/decode/ask-inl.h"
#include "kernels/decode/job.h"
#include "kernels/decode/order.h"
#include "kernels/decode/pipeline-inl.h"
#include "kernels/decode/pipeline_shape-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// The functions for one format. Null where it is not pipelined.
struct PipelineFunctions {
  void (*attend)(const DecodeJob&, const DecodeScratch&, const PipelineTile&, FarLines*,
                 PipelineState*) = nullptr;
  void (*drain)(const DecodeJob&, const DecodeScratch&, PipelineState*) = nullptr;
};

HWY_INLINE bool HasNarrowParameters(const DecodeTensor& tensor) {
  return tensor.format->dtype == quant::Dtype::kF16 || tensor.format->dtype == quant::Dtype::kBf16;
}

template <class Shape>
HWY_INLINE bool Fits(const DecodeFormat& format, uint32_t offset_groups) {
  const auto fits = [](const DecodeTensor& tensor, CodeKind kind, uint32_t group, bool biased) {
    return !tensor.raw && tensor.dim == kPipelineDim && tensor.group == group &&
           tensor.biased == biased && tensor.bits == (kind == CodeKind::kNibbles ? 4 : 8) &&
           tensor.is_signed == (kind == CodeKind::kSignedBytes) && HasNarrowParameters(tensor);
  };
  return fits(format.key, Shape::kKey, Shape::kKeyGroup, Shape::kKeyBiased) &&
         fits(format.value, Shape::kValue, Shape::kValueGroup, Shape::kValueBiased) &&
         format.digits == Shape::kDigits && offset_groups == Shape::kValueGroups;
}

template <class Shape, class... Shapes>
HWY_INLINE PipelineFunctions FunctionsFor(const DecodeFormat& format, uint32_t offset_groups) {
  if (Fits<Shape>(format, offset_groups)) return {&AttendTile<Shape>, &DrainTile<Shape>};
  if constexpr (sizeof...(Shapes) == 0) {
    return {};
  } else {
    return FunctionsFor<Shapes...>(format, offset_groups);
  }
}
// MLX with groups of 64: keys and values of 8 and 4 bits, of 8, of 4; ggml's q8_0 and q4_0.
HWY_INLINE PipelineFunctions PipelineFor(const DecodeFormat& format, uint32_t offset_groups) {
  if (OrderOfDecode() == DecodeOrder::kStaged) return {};
  constexpr CodeKind kBytes = CodeKind::kBytes, kNibbles = CodeKind::kNibbles;
  constexpr CodeKind kSigned = CodeKind::kSignedBytes;
  return FunctionsFor<PipelineShape<kBytes, 64, kNibbles, 64, 1, true>,
                      PipelineShape<kBytes, 64, kBytes, 64, 2, true>,
                      PipelineShape<kNibbles, 64, kNibbles, 64, 1, true>,
                      PipelineShape<kSigned, 32, kSigned, 32, 2, false>,
                      PipelineShape<kNibbles, 32, kNibbles, 32, 1, false>>(format, offset_groups);
}

// The tiles of a part.
class Pipeline {
 public:
  HWY_INLINE Pipeline(const DecodeJob& job, const DecodeScratch& scratch)
      : job_(job), scratch_(scratch) {}

  // Prepares for tiles of a format. Returns false if it is not pipelined.
  HWY_INLINE bool Prepare(const DecodeFormat& format) {
    if (format_ == &format) return functions_.attend != nullptr;
    Drain();
    format_ = &format;
    functions_ = PipelineFor(format, job_.offset_groups);
    return functions_.attend != nullptr;
  }
  // Requires: Prepare returned true.
  HWY_INLINE void Attend(const PipelineTile& tile, FarLines* far) {
    functions_.attend(job_, scratch_, tile, far, &state_);
  }
  // Returns memory for a tile of values in rows, which stays as it is while the next one is filled.
  HWY_INLINE std::byte* NextValueTile(const DecodeTensor& value) {
    is_second_ = !is_second_;
    return scratch_.value_tile + (is_second_ ? value.tile_layout.unit_bytes : 0);
  }
  HWY_INLINE std::byte* key_tile() const { return scratch_.key_tile; }
  // Adds what is left to be added. Call it before anything else uses the scratch memory or sums.
  HWY_INLINE void Drain() {
    if (state_.is_pending) functions_.drain(job_, scratch_, &state_);
  }

 private:
  const DecodeJob& job_;
  const DecodeScratch& scratch_;
  const DecodeFormat* format_ = nullptr;
  PipelineFunctions functions_;
  PipelineState state_;
  bool is_second_ = false;  // of the two tiles of values
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
