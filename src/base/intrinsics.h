// The CPU's vector instructions by name, where it is an x86: without what GCC 12 warns of in its
// own header. Nothing elsewhere.
#pragma once
#if defined(__x86_64__)
#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif
