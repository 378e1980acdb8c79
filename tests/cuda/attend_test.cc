// Attention on the GPU against the CPU's scalar oracle.
#include <algorithm>
#include <cstdlib>
#include <future>
#include <iostream>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "tests/cuda/attend_case.h"

namespace prefixd::cuda {
namespace {

// Queries and weights have 11 bits where tensor cores multiply them.
constexpr double kFastBound = 1e-3;
constexpr double kPreciseBound = 5e-5;

uint32_t CountOfCases() {
  const char* given = std::getenv("PREFIXD_CUDA_CASES");
  return given == nullptr ? 10000 : static_cast<uint32_t>(std::strtoul(given, nullptr, 10));
}

// The oracle computes on all cores while the GPU attends.
TEST(AttendTest, C7_RandomCasesAreLikeTheScalarOracle) {
  SKIP_WITHOUT_GPU();
  const uint32_t cases = CountOfCases();
  const uint32_t ahead = 4 * std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::future<PreparedCase>> coming;
  double worst = 0, worst_precise = 0;
  uint32_t failures = 0;
  for (uint32_t i = 0, next = 0; i < cases && failures < 10; ++i) {
    for (; next < cases && next < i + ahead; ++next) {
      coming.push_back(
          std::async(std::launch::async, [next] { return Prepare(RandomCase(next)); }));
    }
    const PreparedCase it = coming[i].get();
    const double error = RelativeError(AttendOnGpu(it), it.want);
    (it.shape.precise ? worst_precise : worst) =
        std::max(it.shape.precise ? worst_precise : worst, error);
    const double bound = it.shape.precise ? kPreciseBound : kFastBound;
    EXPECT_LE(error, bound) << ToString(it.shape);
    if (!(error <= bound) || ::testing::Test::HasFailure()) ++failures;
  }
  std::cout << cases << " cases: largest error " << worst << ", precise " << worst_precise << "\n";
}

}  // namespace
}  // namespace prefixd::cuda
