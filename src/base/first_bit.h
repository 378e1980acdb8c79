// The lowest bit of a set of bits.
#pragma once
#include <bitset>
#include <cstddef>

namespace prefixd::base {

// Requires: a bit is set. libstdc++ looks at a word at a time; other libraries have no call for it.
template <size_t N>
size_t FirstBit(const std::bitset<N>& bits) {
#if defined(__GLIBCXX__)
  return bits._Find_first();
#else
  size_t at = 0;
  while (!bits[at]) ++at;
  return at;
#endif
}

}  // namespace prefixd::base
