// The metrics as OpenMetrics, their exemplars, and which clients get them.
#include "daemon/metrics/open_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"

#include "daemon/metrics/families.h"
#include "daemon/metrics/stats_families.h"
#include "daemon/tracing/exemplars.h"
#include "prometheus/text_serializer.h"

namespace prefixd::daemon {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Exemplar CallOf(double seconds, uint8_t id, double unix_s = 1) {
  Exemplar call{.seconds = seconds, .unix_s = unix_s};
  call.trace_id.fill(std::byte{id});
  call.span_id.fill(std::byte{id});
  return call;
}

// The calls of `seconds` each, as a scrape has them.
std::vector<prometheus::MetricFamily> CallsOf(const char* verb, std::vector<uint64_t> us) {
  block::LatencyHistogram times;
  for (const uint64_t one : us) {
    ++times.buckets[static_cast<size_t>(std::bit_width(one)) - 1];
    times.sum_us += one;
    ++times.count;
  }
  Families families;
  families.Histogram(kRequestDuration, "Help.", times, {{"verb", verb}});
  return families.Take();
}

TEST(OpenMetricsTest, EachTypeIsWrittenAsTheSpecificationHasIt) {
  Families families;
  families.Counter("some_calls_total", "Calls.", 7, {{"verb", "a"}, {"result", "ok"}});
  families.Counter("some_calls_total", "Calls.", 8, {{"verb", "b"}, {"result", "ok"}});
  families.Counter("without_suffix", "Help.", 1);
  families.Gauge("some_ratio", "Help.", 0.1);
  families.Gauge("endless", "Help.", kInfinity);
  families.Untyped("strange", "Help.", -2.5);
  EXPECT_EQ(WriteOpenMetrics(families.Take(), nullptr),
            "# TYPE some_calls counter\n# HELP some_calls Calls.\n"
            "some_calls_total{verb=\"a\",result=\"ok\"} 7\n"
            "some_calls_total{verb=\"b\",result=\"ok\"} 8\n"
            "# TYPE without_suffix unknown\n# HELP without_suffix Help.\nwithout_suffix 1\n"
            "# TYPE some_ratio gauge\n# HELP some_ratio Help.\nsome_ratio 0.1\n"
            "# TYPE endless gauge\n# HELP endless Help.\nendless +Inf\n"
            "# TYPE strange unknown\n# HELP strange Help.\nstrange -2.5\n"
            "# EOF\n");
}

TEST(OpenMetricsTest, QuotesBackslashesAndLineEndsAreEscaped) {
  Families families;
  families.Gauge("named", "Says \"no\"\nand \\.", 1, {{"model", "a\"b\\c\nd"}});
  EXPECT_EQ(WriteOpenMetrics(families.Take(), nullptr),
            "# TYPE named gauge\n# HELP named Says \\\"no\\\"\\nand \\\\.\n"
            "named{model=\"a\\\"b\\\\c\\nd\"} 1\n# EOF\n");
}

TEST(OpenMetricsTest, AHistogramHasTheSameBucketsInBothFormats) {
  const auto families = CallsOf("acquire", {3, 20, 20, 5'000'000, 60'000'000});
  const auto buckets = [](const std::string& text) {
    std::set<std::string> lines;
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
      if (line.starts_with(kRequestDuration)) lines.insert(line);
    }
    return lines;
  };
  const auto open = buckets(WriteOpenMetrics(families, nullptr));
  EXPECT_EQ(open, buckets(prometheus::TextSerializer().Serialize(families)));
  EXPECT_THAT(open, ::testing::Contains("prefixd_request_duration_seconds_bucket"
                                        "{verb=\"acquire\",le=\"+Inf\"} 5"));
}

TEST(OpenMetricsTest, ACallStandsBesideTheBucketThatCountsIt) {
  Exemplars exemplars;
  exemplars.Note("acquire", CallOf(20e-6, 0xaa, 1520879607.789));
  exemplars.Note("acquire", CallOf(60, 0xbb));
  exemplars.Note("commit", CallOf(300e-6, 0xcc));
  const std::string text = WriteOpenMetrics(CallsOf("acquire", {20, 60'000'000}), &exemplars);
  const std::string a(32, 'a'), b(32, 'b');
  EXPECT_THAT(text,
              AllOf(HasSubstr("le=\"3.2e-05\"} 1 # {trace_id=\"" + a + "\",span_id=\"" +
                              a.substr(16) + "\"} 2e-05 1520879607.789\n"),
                    HasSubstr("le=\"+Inf\"} 2 # {trace_id=\"" + b + "\""), Not(HasSubstr("cccc"))));
  const std::vector<std::string> samples = absl::StrSplit(text, " # {");
  EXPECT_EQ(samples.size(), 3u) << "two exemplars: " << text;
}

TEST(OpenMetricsTest, OnlyTheHistogramOfCallsHasExemplars) {
  Exemplars exemplars;
  exemplars.Note("acquire", CallOf(20e-6, 0xaa));
  auto families = CallsOf("acquire", {20});
  families[0].name = "prefixd_other_seconds";
  EXPECT_THAT(WriteOpenMetrics(families, &exemplars), Not(HasSubstr(" # {")));
}

TEST(OpenMetricsTest, AClientGetsItThatAsksForItAndLikesPlainTextNoBetter) {
  for (const char* const accept :
       {"application/openmetrics-text",
        "application/openmetrics-text; version=1.0.0; charset=utf-8",
        "Application/OpenMetrics-Text;version=1.0.0;q=0.8,application/openmetrics-text;"
        "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"}) {
    EXPECT_TRUE(PrefersOpenMetrics(accept)) << accept;
  }
  for (const char* const accept :
       {"", "*/*", "text/plain", "application/openmetrics-text;q=0",
        "application/openmetrics-text;q=abc", "application/openmetrics-text;q=nan",
        "application/openmetrics-text;version=2.0.0", "application/openmetrics-textual",
        "application/openmetrics-text;q=0.5,text/plain", ";;;,,,=;q="}) {
    EXPECT_FALSE(PrefersOpenMetrics(accept)) << accept;
  }
}

TEST(ExemplarsTest, EachBucketKeepsTheCallThatEndedLast) {
  Exemplars exemplars;
  exemplars.Note("acquire", CallOf(20e-6, 1));
  exemplars.Note("acquire", CallOf(30e-6, 2, 2));  // of the same bucket
  exemplars.Note("acquire", CallOf(40e-6, 3, 0));
  EXPECT_EQ(exemplars.Find("acquire", 16e-6, 32e-6)->trace_id[0], std::byte{2});
  EXPECT_EQ(exemplars.Find("acquire", 32e-6, 64e-6)->trace_id[0], std::byte{3});
  EXPECT_EQ(exemplars.Find("acquire", -kInfinity, kInfinity)->trace_id[0], std::byte{2})
      << "the newest";
  EXPECT_FALSE(exemplars.Find("acquire", 30e-6, 35e-6).has_value()) << "none within";
  EXPECT_FALSE(exemplars.Find("commit", -kInfinity, kInfinity).has_value());
}

TEST(ExemplarsTest, CallsOfAnyLengthHaveABucket) {
  for (const double seconds : {-1.0, 0.0, 1e-9, 5000.0, 1e9}) {
    Exemplars exemplars;
    exemplars.Note("fetch", CallOf(seconds, 1));
    EXPECT_TRUE(exemplars.Find("fetch", -kInfinity, kInfinity).has_value()) << seconds;
  }
}

TEST(ExemplarsTest, ThreadsMayNoteWhileAScrapeReads) {
  Exemplars exemplars;
  std::thread notes([&] {
    for (int i = 0; i < 20'000; ++i) exemplars.Note("acquire", CallOf(i * 1e-6, 7));
  });
  for (int i = 0; i < 20'000; ++i) {
    const auto call = exemplars.Find("acquire", -kInfinity, kInfinity);
    EXPECT_EQ(call.value_or(CallOf(0, 7)).trace_id, CallOf(0, 7).trace_id);
  }
  notes.join();
}

}  // namespace
}  // namespace prefixd::daemon
