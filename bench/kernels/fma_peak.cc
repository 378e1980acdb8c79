#include "bench/kernels/fma_peak.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/kernels/fma_peak.cc"
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Twelve chains: more than the longest latency times the widest issue needs. Named and not an
// array: GCC at -O2 keeps arrays of vectors in memory.
HWY_ATTR uint64_t MultiplyAddFloats(uint64_t flop) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, 0.5f);
  // Other values in each, or the compiler keeps one chain for all.
  auto a = hn::Iota(d, 0), b = hn::Iota(d, 1), c = hn::Iota(d, 2), e = hn::Iota(d, 3),
       f = hn::Iota(d, 4), g = hn::Iota(d, 5), h = hn::Iota(d, 6), i = hn::Iota(d, 7),
       j = hn::Iota(d, 8), k = hn::Iota(d, 9), l = hn::Iota(d, 10), m = hn::Iota(d, 11);
  const uint64_t step = 12 * 2 * hn::Lanes(d);
  uint64_t done = 0;
  for (; done < flop; done += step) {
    a = hn::MulAdd(a, factor, factor);
    b = hn::MulAdd(b, factor, factor);
    c = hn::MulAdd(c, factor, factor);
    e = hn::MulAdd(e, factor, factor);
    f = hn::MulAdd(f, factor, factor);
    g = hn::MulAdd(g, factor, factor);
    h = hn::MulAdd(h, factor, factor);
    i = hn::MulAdd(i, factor, factor);
    j = hn::MulAdd(j, factor, factor);
    k = hn::MulAdd(k, factor, factor);
    l = hn::MulAdd(l, factor, factor);
    m = hn::MulAdd(m, factor, factor);
  }
  const auto ab = hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, e)), hn::Add(f, g));
  const auto all = hn::Add(ab, hn::Add(hn::Add(hn::Add(h, i), hn::Add(j, k)), hn::Add(l, m)));
  // Sums go to 1: never so large. Only the compiler does not know.
  return hn::GetLane(hn::SumOfLanes(d, all)) > 1e9f ? 0 : done;
}

}  // namespace prefixd::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace prefixd::bench {

HWY_EXPORT(MultiplyAddFloats);

uint64_t MultiplyAddFloats(uint64_t flop) { return HWY_DYNAMIC_DISPATCH(MultiplyAddFloats)(flop); }

}  // namespace prefixd::bench
#endif  // HWY_ONCE
