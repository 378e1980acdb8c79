// Every target against seeded mutations of valid inputs: what libFuzzer does for longer
// (scripts/fuzz), for so many inputs that every run of the tests can afford them.
#include <algorithm>
#include <cstdlib>
#include <random>

#include "gtest/gtest.h"

#include "base/bytes.h"
#include "tests/fuzz/targets.h"

namespace prefixd::fuzz {
namespace {

uint64_t Inputs() {
  const char* const asked = std::getenv("PREFIXD_FUZZ_INPUTS");
  return asked == nullptr ? 20'000 : std::strtoull(asked, nullptr, 10);
}

class Mutator {
 public:
  Mutator(uint64_t seed, std::vector<std::string> valid)
      : random_(seed), valid_(std::move(valid)) {}
  std::string Next() {
    std::string input = Pick();
    for (uint64_t changes = random_() % 8; changes > 0; --changes) Change(input);
    return input;
  }

 private:
  const std::string& Pick() { return valid_[random_() % valid_.size()]; }
  size_t Place(const std::string& input) { return random_() % (input.size() + 1); }
  void Change(std::string& input) {
    static constexpr uint32_t kNumbers[] = {0,       1,          0x7f,       0xff,
                                            0x10000, 0x7fffffff, 0x80000000, 0xffffffff};
    const size_t at = Place(input);
    switch (random_() % 6) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << random_() % 8));
        break;
      case 1:
        if (at < input.size()) input[at] = static_cast<char>(random_());
        break;
      case 2: {
        const uint32_t number = kNumbers[random_() % std::size(kNumbers)];
        const std::string bytes(reinterpret_cast<const char*>(&number), sizeof(number));
        input.replace(at, std::min(sizeof(number), input.size() - at), bytes);
        break;
      }
      case 3:
        input.resize(at);
        break;
      case 4:
        input.insert(at, std::string(random_() % 16, static_cast<char>(random_())));
        break;
      default: {
        const std::string& other = Pick();
        const size_t from = Place(other);
        input.replace(at, input.size() - at, other.substr(from));
      }
    }
  }

  std::mt19937_64 random_;
  const std::vector<std::string> valid_;
};

class FuzzTest : public ::testing::TestWithParam<Target> {};

TEST_P(FuzzTest, AnyBytesAreReadOrRefused) {
  const Target& target = GetParam();
  for (const std::string& seed : target.seeds()) target.run(base::AsBytes(seed));
  Mutator mutator(20261122, target.seeds());
  // Opening an arena takes about a millisecond.
  const uint64_t inputs = target.name == std::string("arena_tables") ? Inputs() / 20 : Inputs();
  for (uint64_t i = 0; i < inputs; ++i) target.run(base::AsBytes(mutator.Next()));
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzTest, ::testing::ValuesIn(Targets()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace prefixd::fuzz
