// Whether the tests' stores read large pages past RocksDB. CTest runs ssd and cache both ways: with
// PREFIXD_TEST_READS=rocksdb every page comes from RocksDB.
#pragma once
#include <cstdlib>
#include <string_view>

namespace prefixd::ssd {

inline bool TestsReadDirectly() {
  const char* const reads = std::getenv("PREFIXD_TEST_READS");
  return reads == nullptr || std::string_view(reads) != "rocksdb";
}

}  // namespace prefixd::ssd
