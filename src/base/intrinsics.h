// Includes the vector intrinsics of x86 without the warnings that GCC 12 gives for its own header.
// Empty on other CPUs.
#pragma once
#if defined(__x86_64__)
#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif
