// The promises of targets.
#pragma once
#include <cstdio>
#include <cstdlib>

namespace prefixd::fuzz {

inline void Expect(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: broken: %s\n", promise);
  std::abort();
}

}  // namespace prefixd::fuzz
