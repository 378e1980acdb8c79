// Bytes and deadlines for the tests of the room.
#pragma once
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "remote/remote_store.h"

namespace prefixd::testing {

inline base::Deadline In(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}
inline base::Deadline Patiently() { return In(std::chrono::seconds(20)); }

// Bytes that no two seeds share.
inline std::string Pattern(size_t bytes, uint64_t seed) {
  std::string text(bytes, '\0');
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (char& c : text) {
    state = state * 6364136223846793005 + 1442695040888963407;
    c = static_cast<char>(state >> 56);
  }
  return text;
}

// A bundle's stripes and, to load it into, as much room.
struct Bundle {
  Bundle(std::vector<size_t> sizes, uint64_t seed) {
    for (size_t i = 0; i < sizes.size(); ++i) stripes.push_back(Pattern(sizes[i], seed * 100 + i));
    for (const std::string& stripe : stripes) room.emplace_back(stripe.size(), std::byte{0xee});
  }
  std::vector<remote::ConstRuns> out() const {
    std::vector<remote::ConstRuns> runs;
    for (const std::string& stripe : stripes) {
      const auto bytes = base::AsBytes(stripe);
      const size_t cut = bytes.size() / 3;
      runs.push_back({bytes.first(cut), bytes.subspan(cut)});
    }
    return runs;
  }
  std::vector<remote::Runs> in() {
    std::vector<remote::Runs> runs;
    for (std::vector<std::byte>& bytes : room) {
      const size_t cut = bytes.size() / 2;
      runs.push_back({std::span(bytes).first(cut), std::span(bytes).subspan(cut)});
    }
    return runs;
  }
  bool arrived() const {
    for (size_t i = 0; i < stripes.size(); ++i) {
      if (base::AsText(room[i]) != stripes[i]) return false;
    }
    return true;
  }
  std::vector<std::string> stripes;
  std::vector<std::vector<std::byte>> room;
};

}  // namespace prefixd::testing
