// Counts what operator new hands out. Linking counting_new.cc replaces the program's allocator
// functions. For tests of kernels/.
//
// Thread-safe; one watch at a time.
#pragma once
#include <cstddef>

namespace prefixd::kernels {

class AllocationWatch {
 public:
  AllocationWatch();
  // Most bytes that were allocated at once since this watch began, less those of before.
  size_t peak_bytes() const;

 private:
  size_t before_ = 0;
};

}  // namespace prefixd::kernels
