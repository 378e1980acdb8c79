// Fast decode of one tile after the other where the float work of a tile runs beside the products
// of another, for one SIMD target: included once per target.
//
// Between two loops of products lies about as much float work as a core can look ahead. So it is
// cut into pieces, one after each 16 products, and values come one tile late:
//
//   products of                     | beside them
//   keys, tokens 0-31               | rounding of the weights of the tile before
//   keys, tokens 32-63              | weights of tokens 0-31
//   values of the tile before, 0-63 | weights of tokens 32-63
//   the same, 64-127                | weights times scales, and the largest of these products
//
// Each step asks for as many lines as memory gives in its time: far ones, and near ones of what the
// stage after the next reads. A row head's sums are the same
// bits as in the staged order: the pieces are its functions, and tiles are added in its order.
#if defined(PREFIXD_KERNELS_DECODE_PIPELINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_PIPELINE_INL_H_
#undef PREFIXD_KERNELS_DECODE_PIPELINE_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_PIPELINE_INL_H_
#endif

#include <cfloat>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/decode/ask-inl.h"
#include "kernels/decode/job.h"
#include "kernels/decode/pipeline_keys-inl.h"
#include "kernels/decode/pipeline_shape-inl.h"
#include "kernels/decode/pipeline_values-inl.h"
#include "kernels/decode/softmax-inl.h"
#include "kernels/decode/weights-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// One tensor's side of a tile of kDecodeTile tokens.
struct PipelineSide {
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;  // of the first group
  const std::byte* biases = nullptr;
  size_t group_stride = 0;      // bytes of codes from a group to the next (values)
  size_t parameter_stride = 0;  // bytes of scales from a group to the next
  bool bf16 = false;            // scales and biases; else f16
};
// A tile and kStripHeads row heads that see all of it.
struct PipelineTile {
  PipelineSide key, value;
  const int8_t* query = nullptr;  // codes
  size_t query_digit_pitch = 0;
  const QueryTerm* terms = nullptr;
  size_t first = 0;  // index of the first row head in job.sums
  // Keys that are read after those of this tile.
  const std::byte* near_codes = nullptr;
  const std::byte* near_scales = nullptr;
};

// What lies between two tiles: the values of `tile` have not been added yet if `is_pending`. Its
// products are in scratch.products.
struct PipelineState {
  PipelineTile tile;
  bool is_pending = false;
  bool is_corrected = false;       // true: sums of values are to be multiplied by these first
  float corrections[kStripHeads];  // 1 where nothing changes
  WeightSteps steps;
  // [2 halves][key groups][kStripHeads][2][16]: products of queries and keys
  alignas(64) int32_t key_sums[2 * 4 * kStripHeads * 2 * kLanes];
};

template <class Shape>
class PipelineStages {
 public:
  HWY_INLINE PipelineStages(const DecodeJob& job, const DecodeScratch& scratch,
                            const PipelineTile& tile, const FarLines& far, PipelineState* state)
      : job_(job),
        scratch_(scratch),
        next_(tile),
        state_(state),
        tile_(tile),
        before_(state->tile),
        steps_(&state->steps),
        key_sums_(state->key_sums),
        key_scales_(scratch.key_scales),
        key_biases_(scratch.key_biases),
        value_scales_(scratch.value_scales),
        value_biases_(scratch.value_biases),
        weights_(scratch.scores),
        products_(scratch.products),
        lanes_(scratch.lanes),
        codes_(scratch.codes),
        values_(job.sums.values),
        value_pitch_(job.value_pitch),
        offsets_(job.sums.offsets),
        middle_(Shape::kValue == CodeKind::kNibbles ? 8.0f : 128.0f),
        sums_(job.sums),
        near_{.codes = tile.near_codes, .scales = tile.near_scales},
        far_(far) {}

  // Computes the tile up to its products, and adds the values of the tile before. Returns what
  // is left to be asked for.
  template <bool kPending>
  HWY_INLINE FarLines Run() {
    VF above = hn::Set(DF(), -FLT_MAX);
    DotKeys<0>([&](size_t turn, auto step) PREFIXD_KERNELS_INLINE {
      At<kKeyItems>(step, [&](auto i) PREFIXD_KERNELS_INLINE { WidenKeys<0>(turn, i); });
      if constexpr (kPending) {
        At<kGroups>(step, [&](auto g) PREFIXD_KERNELS_INLINE { Round(g, turn); });
      }
    });
    DotKeys<1>([&](size_t turn, auto step) PREFIXD_KERNELS_INLINE {
      At<kKeyItems>(step, [&](auto i) PREFIXD_KERNELS_INLINE { WidenKeys<1>(turn, i); });
      At<2>(step, [&](auto v) PREFIXD_KERNELS_INLINE { Weigh(turn, v, &above); });
    });
    const auto weigh = [&](size_t turn, auto step) PREFIXD_KERNELS_INLINE {
      At<2>(step, [&](auto v) PREFIXD_KERNELS_INLINE { Weigh(turn, 2 + v, &above); });
      At<kGroups>(step, [&](auto g) PREFIXD_KERNELS_INLINE { WidenValues(g, turn); });
    };
    if (HWY_UNLIKELY(kPending && state_->is_corrected)) Correct(job_, state_);
    BesideValues<kPending, 0>(weigh);
    if (HWY_UNLIKELY(IsAbove(above))) WeighAnew(job_, scratch_, next_, state_);
    BesideValues<kPending, 1>([&](size_t turn, auto step) PREFIXD_KERNELS_INLINE {
      At<kGroups>(step, [&](auto g) PREFIXD_KERNELS_INLINE { Multiply(g, turn); });
    });
    SetSteps();
    return far_.Rest();
  }

  // Adds the values of the tile before.
  HWY_INLINE void Drain() {
    for (size_t r = 0; r < kStripHeads; ++r) {
      Unroll<kGroups>([&](auto g) PREFIXD_KERNELS_INLINE { Round(g, r); });
    }
    if (state_->is_corrected) Correct(job_, state_);
    const auto nothing = [](size_t, auto) PREFIXD_KERNELS_INLINE {};
    BesideValues<true, 0>(nothing);
    BesideValues<true, 1>(nothing);
  }

 private:
  static_assert(kTurns == kStripHeads);  // many turns do the work of one row head
  static constexpr size_t kGroups = Shape::kValueGroups;
  static constexpr size_t kKeyItems = Shape::kKeyGroups * 2 / kTurns;  // vectors of a half, a turn
  static constexpr size_t kHalfSums = Shape::kKeyGroups * kKeySumsPitch;

  // Calls `item` with those of a turn's kItems items whose step it is.
  template <size_t kItems, class Step, class Item>
  static HWY_INLINE void At(Step, const Item& item) {
    constexpr size_t kBegin = Step::value * kItems / Shape::kSteps;
    constexpr size_t kEnd = (Step::value + 1) * kItems / Shape::kSteps;
    Unroll<kEnd - kBegin>(
        [&](auto i) PREFIXD_KERNELS_INLINE { item(std::integral_constant<size_t, kBegin + i>()); });
  }
  // Asks for the lines of a step of one of the four stages. While keys are multiplied, the near
  // lines are the values of the tile before and this tile's scales of values, then the next keys.
  template <size_t kStage, class Step>
  HWY_INLINE void AskAt(size_t stage_turn, Step) const {
    const size_t turn = kStage % 2 * kTurns + stage_turn;  // of two stages
    const PipelineSide& side = kStage < 2 ? before_.value : near_;
    const std::byte* const scales = kStage < 2 ? tile_.value.scales : near_.scales;
    constexpr CodeKind kKind = kStage < 2 ? Shape::kValue : Shape::kKey;
    // Values of a group stand together, keys of a tile.
    constexpr size_t kGroupTurns = kStage < 2 ? 2 * kTurns / Shape::kValueGroups : 2 * kTurns;
    constexpr size_t kCodes = Shape::CodeBytes(kKind) / kLine / (2 * kTurns);
    constexpr auto before = [](size_t lines, size_t step) { return step * lines / Shape::kSteps; };
    constexpr size_t kFirst = before(kCodes, Step::value), kEnd = before(kCodes, Step::value + 1);
    const std::byte* const group = side.codes + turn / kGroupTurns * side.group_stride;
    AskForLines<3, kEnd - kFirst>(reinterpret_cast<uintptr_t>(group) +
                                  (turn % kGroupTurns * kCodes + kFirst) * kLine);
    if constexpr (Step::value == 0) {
      AskForLines<3, 1>(reinterpret_cast<uintptr_t>(scales) + turn * kLine);
    }
    far_.template Ask<before(Shape::kTurnLines, Step::value),
                      before(Shape::kTurnLines, Step::value + 1)>();
  }
  template <class Step>
  HWY_INLINE void EndStep(Step) {
    if constexpr (Step::value + 1 == Shape::kSteps) far_.EndTurn();
    __asm__ volatile("");  // keeps the order
  }

  template <size_t kHalf, class Beside>
  HWY_INLINE void DotKeys(const Beside& beside) {
    constexpr size_t kHalfBytes =
        size_t{32} * kPipelineDim / (Shape::kKey == CodeKind::kNibbles ? 2 : 1);
    DotKeyHalf<Shape>(tile_.key.codes + kHalf * kHalfBytes, tile_.query, tile_.query_digit_pitch,
                      key_sums_ + kHalf * kHalfSums,
                      [&](size_t turn, auto step) PREFIXD_KERNELS_INLINE {
                        AskAt<kHalf>(turn, step);
                        beside(turn, step);
                        EndStep(step);
                      });
  }
  // Does `beside` along the products of half of the values of the tile before, if there is any.
  template <bool kPending, size_t kHalf, class Beside>
  HWY_INLINE void BesideValues(const Beside& beside) {
    if constexpr (!kPending) {
      for (size_t turn = 0; turn < kTurns; ++turn) {
        Unroll<Shape::kSteps>([&](auto step) PREFIXD_KERNELS_INLINE {
          AskAt<2 + kHalf>(turn, step);
          beside(turn, step);
          EndStep(step);
        });
      }
      return;
    }
    constexpr size_t kFirst = kHalf * (64 / Shape::kValueGroup);  // group
    const PipelineSide& value = before_.value;
    DotValueHalf<Shape>(value.codes + kFirst * value.group_stride, value.group_stride,
                        codes_ + kFirst * kStripHeads * kDecodeTile,
                        steps_->steps + kFirst * kStripHeads,
                        values_ + before_.first * value_pitch_ + kHalf * 64, value_pitch_,
                        [&](size_t turn, auto step) PREFIXD_KERNELS_INLINE {
                          AskAt<2 + kHalf>(turn, step);
                          beside(turn, step);
                          EndStep(step);
                        });
  }

  // Widens scales and biases of a vector of tokens.
  template <bool kBiased>
  static HWY_INLINE void Widen(const PipelineSide& side, size_t g, size_t vector, float middle,
                               float* scales, float* biases) {
    const DF df;
    const size_t at = g * side.parameter_stride + vector * kLanes * 2;
    const auto load = [&](const std::byte* from) PREFIXD_KERNELS_INLINE {
      return side.bf16 ? LoadBf16(from) : LoadHalf(from);
    };
    const VF scale = load(side.scales + at);
    hn::StoreU(scale, df, scales + g * kDecodeTile + vector * kLanes);
    if constexpr (kBiased) {
      const VF bias = hn::MulAdd(scale, hn::Set(df, middle), load(side.biases + at));
      hn::StoreU(bias, df, biases + g * kDecodeTile + vector * kLanes);
    }
  }
  template <size_t kHalf>
  HWY_INLINE void WidenKeys(size_t turn, size_t item) const {
    constexpr float kMiddle = Shape::kKey == CodeKind::kNibbles ? 8.0f : 128.0f;
    const size_t i = turn * kKeyItems + item;
    Widen<Shape::kKeyBiased>(tile_.key, i / 2, 2 * kHalf + i % 2, kMiddle, key_scales_,
                             key_biases_);
  }
  HWY_INLINE void WidenValues(size_t g, size_t v) const {
    Widen<Shape::kValueBiased>(tile_.value, g, v, middle_, value_scales_, value_biases_);
  }

  // Returns the scores of vector `v` of a tile for its r-th row head.
  static HWY_INLINE VF ScoresOf(const int32_t* key_sums, const float* scales, const float* biases,
                                const QueryTerm* terms, size_t r, size_t v) {
    return ScoreVector<Shape>(key_sums + v / 2 * kHalfSums + (2 * r + v % 2) * kLanes,
                              scales + v * kLanes, biases + v * kLanes,
                              terms + r * Shape::kKeyGroups);
  }
  // Computes weights as if no reference moved; `above` becomes the largest score less a reference.
  HWY_INLINE void Weigh(size_t r, size_t v, VF* above) const {
    const VF score = ScoresOf(key_sums_, key_scales_, key_biases_, tile_.terms, r, v);
    const VF less = hn::Sub(score, hn::Set(DF(), sums_.references[tile_.first + r]));
    *above = hn::Max(less, *above);  // the second one where the first is NaN
    hn::StoreU(BoundedExp2(less), DF(), weights_ + r * kDecodeTile + v * kLanes);
  }
  // Moves the references of row heads that have a score above them, and computes their weights.
  static HWY_NOINLINE HWY_ATTR void WeighAnew(const DecodeJob& job, const DecodeScratch& scratch,
                                              const PipelineTile& tile, PipelineState* state) {
    for (size_t r = 0; r < kStripHeads; ++r) {
      state->corrections[r] = 1;
      const auto vector = [&](size_t v) HWY_ATTR {
        return ScoresOf(state->key_sums, scratch.key_scales, scratch.key_biases, tile.terms, r, v);
      };
      const TileRow64 row{vector(0), vector(1), vector(2), vector(3)};
      const float& reference = job.sums.references[tile.first + r];
      if (!IsAbove(row.Less(reference).MaxAcross())) continue;
      state->corrections[r] = hn::GetLane(RaiseReference(job, tile.first + r, row.MaxAcross()));
      const TileRow64 less = row.Less(reference);
      TileRow64{BoundedExp2(less.v0), BoundedExp2(less.v1), BoundedExp2(less.v2),
                BoundedExp2(less.v3)}
          .Store(scratch.scores + r * kDecodeTile);
    }
    state->is_corrected = true;
  }
  // Corrects the sums of values of tiles before the pending one.
  static HWY_NOINLINE HWY_ATTR void Correct(const DecodeJob& job, PipelineState* state) {
    for (size_t r = 0; r < kStripHeads; ++r) {
      if (state->corrections[r] == 1) continue;
      CorrectValues(job, state->tile.first + r, hn::Set(DF(), state->corrections[r]));
    }
    state->is_corrected = false;
  }

  HWY_INLINE float* OffsetsOf(const PipelineTile& tile, size_t g, size_t r) const {
    return offsets_ + ((tile.first + r) * Shape::kValueGroups + g) * kLanes;
  }
  // Multiplies a row head's weights by the scales of a group.
  HWY_INLINE void Multiply(size_t g, size_t r) const {
    const DF df;
    const size_t i = g * kStripHeads + r;
    const TileRow64 weights = TileRow64::Load(weights_ + r * kDecodeTile);
    const TileRow64 x = weights.Times(TileRow64::Load(value_scales_ + g * kDecodeTile));
    x.Store(products_ + i * kDecodeTile);
    hn::StoreU(x.LargestAcross(), df, lanes_ + i * kLanes);
    if constexpr (Shape::kValueBiased) {
      float* const offset = OffsetsOf(tile_, g, r);
      const TileRow64 biases = TileRow64::Load(value_biases_ + g * kDecodeTile);
      hn::StoreU(weights.SumInOrder(biases, hn::LoadU(df, offset)), df, offset);
    }
    if (g == 0) AddWeights(sums_, tile_.first + r, weights);
  }
  HWY_INLINE void SetSteps() const {
    const VF largest = Shape::kValueGroups <= kChunkGroups / 2
                           ? JoinedRows<JoinByMax>::Of8(lanes_)
                           : JoinedRows<JoinByMax>::Of16(lanes_);
    steps_->Set(largest, CodeLimit(Shape::kDigits), middle_);
  }
  // Rounds the products of the tile before, of one row head and group.
  HWY_INLINE void Round(size_t g, size_t r) const {
    const DF df;
    const size_t i = g * kStripHeads + r;
    const VF sum = StoreRounded<Shape::kDigits>(TileRow64::Load(products_ + i * kDecodeTile),
                                                steps_->inverses[i], codes_ + i * kDecodeTile,
                                                kWeightDigitPitch);
    float* const offset = OffsetsOf(before_, g, r);
    hn::StoreU(hn::MulAdd(sum, hn::Set(df, steps_->middles[i]), hn::LoadU(df, offset)), df, offset);
  }

  const DecodeJob& job_;
  const DecodeScratch& scratch_;
  const PipelineTile& next_;
  PipelineState* const state_;
  // Copies: members of what is passed on would be loaded again after each store.
  const PipelineTile tile_, before_;
  WeightSteps* const steps_;
  int32_t* const key_sums_;
  float* const key_scales_;
  float* const key_biases_;
  float* const value_scales_;
  float* const value_biases_;
  float* const weights_;
  float* const products_;
  float* const lanes_;
  int8_t* const codes_;
  float* const values_;
  const size_t value_pitch_;
  float* const offsets_;
  const float middle_;
  const DecodeSums sums_;
  const PipelineSide near_;
  PacedLines<2, Shape::kTurnLines> far_;
};

// Aligned: where its loops begin in a line of code is worth up to a tenth of its time.
template <class Shape>
HWY_NOINLINE HWY_ATTR __attribute__((aligned(64))) void AttendTile(const DecodeJob& job,
                                                                   const DecodeScratch& scratch,
                                                                   const PipelineTile& tile,
                                                                   FarLines* far,
                                                                   PipelineState* state) {
  if (state->is_pending) {
    *far = PipelineStages<Shape>(job, scratch, tile, *far, state).template Run<true>();
  } else {
    *far = PipelineStages<Shape>(job, scratch, tile, *far, state).template Run<false>();
  }
  state->tile = tile;
  state->is_pending = true;
}
template <class Shape>
HWY_NOINLINE HWY_ATTR void DrainTile(const DecodeJob& job, const DecodeScratch& scratch,
                                     PipelineState* state) {
  const FarLines none(state->tile.value.codes);
  PipelineStages<Shape>(job, scratch, state->tile, none, state).Drain();
  state->is_pending = false;
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
