// ShippedTrace() returns the path of a recorded trace of tests/data.
#pragma once
#include <string>

namespace prefixd::bench {

inline std::string ShippedTrace(const std::string& name) {
  return std::string(PREFIXD_TEST_DATA) + "/traces/" + name + ".jsonl.zst";
}

}  // namespace prefixd::bench
