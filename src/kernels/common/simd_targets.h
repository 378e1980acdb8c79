// Which Highway targets the kernels are built for: all with vectors of a fixed size, since register
// tiles are arrays of vectors; and the one whose integer dot product is a single instruction, which
// Highway builds only when asked. Include before any hwy header.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#define HWY_WANT_AVX3_DL
