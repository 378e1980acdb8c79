// prefixd_set_trace: what it takes. That calls carry it, tests/client/trace_test.cc and
// tests/tracing hold.
#include <gtest/gtest.h>

#include "prefixd.h"

namespace {

constexpr char kParent[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(CapiTraceTest, ATraceIsNamedReplacedAndEnded) {
  EXPECT_EQ(prefixd_set_trace(kParent, "a=1"), PREFIXD_OK);
  EXPECT_EQ(prefixd_set_trace(kParent, nullptr), PREFIXD_OK);
  EXPECT_EQ(prefixd_set_trace(nullptr, nullptr), PREFIXD_OK);
  EXPECT_EQ(prefixd_set_trace("", ""), PREFIXD_OK);
  EXPECT_STREQ(prefixd_last_error(), "");
}

TEST(CapiTraceTest, ATraceparentThatIsNotWellFormedIsTheCallersMistake) {
  EXPECT_EQ(prefixd_set_trace("nonsense", nullptr), PREFIXD_INVALID_ARGUMENT);
  EXPECT_STREQ(prefixd_last_error(),
               "trace: the traceparent is not well formed: 00-(32 hex digits)-(16 hex digits)-(2 "
               "hex digits), in lower case");
  EXPECT_EQ(prefixd_set_trace(kParent, "no list"), PREFIXD_OK);
}

}  // namespace
