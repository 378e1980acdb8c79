// A million random operations, in two variants, on the index and on the oracle beside it; after
// each they agree.
#include "oracle_steps.h"

namespace prefixd::index {
namespace {

class OracleTest : public OracleSteps {};

TEST_P(OracleTest, HalfAMillionRandomOperationsAgreeWithAPlainMap) {
  for (uint32_t i = 0; i < 500'000; ++i) {
    Step();
    if (HasFatalFailure()) FAIL() << "at operation " << i;
    CheckFreed();
    if (HasFatalFailure()) FAIL() << "at operation " << i;
    if (i % 1000 == 0) CheckSums();
    if (HasFatalFailure()) FAIL() << "at operation " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, OracleTest,
                         testing::Values(Variant{"FullHash", 128, 0, 1},
                                         Variant{"EightBitHash", 8, 50, 2}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace prefixd::index
