// What a scrape shows: names by Prometheus' conventions, each value once, few series by space.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "daemon/config.h"
#include "daemon/metrics/collector.h"
#include "daemon/metrics/counter_rules.h"
#include "daemon/metrics/stats_families.h"
#include "prometheus/check_names.h"
#include "tests/daemon/fixture.h"

namespace prefixd::daemon {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;
using ::testing::HasSubstr;

// Samples of plain values by "name{label=value,...}".
std::map<std::string, double> Values(const std::vector<MetricFamily>& families) {
  std::map<std::string, double> values;
  for (const MetricFamily& family : families) {
    for (const prometheus::ClientMetric& sample : family.metric) {
      std::string key = family.name + "{";
      for (const auto& label : sample.label) key += label.name + "=" + label.value + ",";
      if (key.back() == ',') key.pop_back();
      const double value = family.type == MetricType::Counter     ? sample.counter.value
                           : family.type == MetricType::Gauge     ? sample.gauge.value
                           : family.type == MetricType::Histogram ? sample.histogram.sample_sum
                                                                  : sample.untyped.value;
      const bool first = values.emplace(key + "}", value).second;
      EXPECT_TRUE(first) << key << "} stands there twice";
    }
  }
  return values;
}

std::map<std::string, double> Shown(const block::Stats& stats) {
  Families families;
  AddStats(stats, &families);
  return Values(families.Take());
}

block::SpaceSummary Space(uint32_t number, uint64_t requested, uint64_t used = 0) {
  block::SpaceSummary space;
  space.id[0] = std::byte{1};
  for (size_t i = 0; i < 4; ++i) space.id[1 + i] = static_cast<std::byte>(number >> (8 * i));
  space.identity.model = "model " + std::to_string(number);
  space.identity.tenant = "local";
  space.identity.block_tokens = 64;
  space.ram_extent_bytes = 10;
  space.tokens.requested = space.tokens.matched = requested;
  space.tokens.restorable.ram = space.tokens.used.ram = used;
  return space;
}

// As the cache counts them: the totals are those of all spaces, also of forgotten ones.
void AddTotals(block::Stats* stats, uint64_t of_others = 0) {
  uint64_t requested = of_others, used = of_others;
  for (const block::SpaceSummary& space : stats->spaces) {
    requested += space.tokens.requested;
    used += space.tokens.used.ram;
  }
  stats->counters = {{"tokens.requested", requested},
                     {"tokens.matched", requested},
                     {"tokens.restorable.ram", used},
                     {"tokens.used.ram", used}};
}

std::map<std::string, double> Advance(SpaceSeries* series, const block::Stats& stats) {
  series->Update(stats);
  Families families;
  series->AddTo(&families);
  return Values(families.Take());
}

std::string Requested(uint32_t number) {
  return "prefixd_tokens_requested_total{space=" + SpaceLabel(Space(number, 0).id) + "}";
}
constexpr char kOtherRequested[] = "prefixd_tokens_requested_total{space=other}";

// --- names ---

TEST(MetricsTest, NamesKeepPrometheusConventions) {
  std::map<std::string, std::string> helps;
  for (const CounterRule& rule : CounterRules()) {
    if (rule.metric == nullptr) continue;
    const std::string name = rule.metric;
    EXPECT_TRUE(prometheus::CheckMetricName(name) && name.starts_with("prefixd_")) << name;
    EXPECT_EQ(name.ends_with("_total"), rule.kind == Kind::kCounter) << name;
    EXPECT_TRUE(std::string(rule.help).ends_with(".")) << name;
    EXPECT_EQ(helps.emplace(name, rule.help).first->second, rule.help) << name << " has two helps";
    EXPECT_TRUE(!rule.is_prefix() || rule.label != nullptr) << rule.counter;
  }
}

TEST(MetricsTest, EveryCounterOfTheSourcesHasAMetric) {
  // counters.Add("x"), cache_->Count("x"), and the pairs of AddAll and of the gauges in stats.cc.
  const std::regex single(R"re((?:counters(?:\.|->)Add|->Count)\(\s*"([^"]+)")re");
  const std::regex block_of_pairs(R"re((?:AddAll|counters\.push_back)\(\{([^;]*)\}\);)re");
  const std::regex pair_name(R"re(\{?\s*"([a-z_.]+)")re");
  std::set<std::string> names;
  for (const char* const folder : {"/src/cache", "/daemon"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(PREFIXD_SOURCE_DIR + std::string(folder))) {
      if (!entry.is_regular_file()) continue;
      std::stringstream file;
      file << std::ifstream(entry.path()).rdbuf();
      const std::string text = file.str();
      for (std::sregex_iterator it(text.begin(), text.end(), single), end; it != end; ++it)
        names.insert((*it)[1]);
      for (std::sregex_iterator it(text.begin(), text.end(), block_of_pairs), end; it != end;
           ++it) {
        const std::string pairs = (*it)[1];
        for (std::sregex_iterator in(pairs.begin(), pairs.end(), pair_name); in != end; ++in)
          names.insert((*in)[1]);
      }
    }
  }
  EXPECT_GT(names.size(), 120u) << "the sources count in another way now";
  for (const std::string& name : names) EXPECT_NE(RuleFor(name), nullptr) << name;
}

TEST(MetricsTest, ACounterWithoutAMetricIsShownAllTheSame) {
  block::Stats stats;
  stats.counters = {{"new.thing", 7}};
  EXPECT_EQ(Shown(stats).at("prefixd_unlisted{name=new.thing}"), 7);
}

TEST(MetricsTest, TheNumberOfSpacesIsASetting) {
  const Environment none = {{"XDG_RUNTIME_DIR", "/tmp/r"}, {"HOME", "/tmp/h"}};
  EXPECT_EQ(LoadConfig({}, none)->config.metrics_spaces, 50);
  EXPECT_EQ(LoadConfig({"--metrics-spaces", "7"}, none)->config.metrics_spaces, 7);
  for (const char* const bad : {"1001", "many", "5%"}) {
    EXPECT_THAT(std::string(LoadConfig({"--metrics-spaces", bad}, none).status().message()),
                HasSubstr("is not a number of spaces up to 1000"));
  }
}

// --- values ---

TEST(MetricsTest, CountersAreThereBeforeTheyCountAndThoseOfATierWithIt) {
  block::Stats stats;
  auto shown = Shown(stats);
  EXPECT_EQ(shown.at("prefixd_checksum_failures_total{}"), 0);
  EXPECT_EQ(shown.at("prefixd_lookups_shortened_total{reason=ram_full}"), 0);
  EXPECT_EQ(shown.at("prefixd_lookups_total{match=exact}"), 0);
  EXPECT_EQ(shown.at("prefixd_refused_total{reason=exhausted}"), 0);
  EXPECT_EQ(shown.at("prefixd_lookup_phase_duration_seconds{phase=match}"), 0);
  EXPECT_EQ(shown.at("prefixd_worker_load_duration_seconds{}"), 0);
  EXPECT_FALSE(shown.contains("prefixd_ssd_errors_total{what=write}"));
  EXPECT_FALSE(shown.contains("prefixd_remote_bad_total{what=seal}"));
  stats.ssd_budget_bytes = 5;
  stats.remote.on = true;
  shown = Shown(stats);
  EXPECT_EQ(shown.at("prefixd_ssd_errors_total{what=write}"), 0);
  EXPECT_EQ(shown.at("prefixd_remote_bad_total{what=seal}"), 0);
}

TEST(MetricsTest, CountersComeWithTheirLabelsAndInBaseUnits) {
  block::Stats stats;
  stats.counters = {{"shortened.evicted", 3},
                    {"tokens.lost.evicted", 300},
                    {"match.lcp", 4},
                    {"ended.diverged", 5},
                    {"refused.some_new_reason", 6},
                    {"longest_hold_us.index", 1500},
                    {"advice.missed_permille", 50},
                    {"bytes.spilled", 100},
                    {"bytes.rewritten", 50},
                    {"bytes.evicted", 4096}};
  stats.ssd_budget_bytes = 1;
  const auto shown = Shown(stats);
  EXPECT_EQ(shown.at("prefixd_lookups_shortened_total{reason=evicted}"), 3);
  EXPECT_EQ(shown.at("prefixd_tokens_lost_total{reason=evicted}"), 300);
  EXPECT_EQ(shown.at("prefixd_lookups_total{match=lcp}"), 4);
  EXPECT_EQ(shown.at("prefixd_lookups_ended_total{reason=diverged}"), 5);
  EXPECT_EQ(shown.at("prefixd_refused_total{reason=some_new_reason}"), 6);
  EXPECT_DOUBLE_EQ(shown.at("prefixd_longest_lock_hold_seconds{lock=index}"), 0.0015);
  EXPECT_DOUBLE_EQ(shown.at("prefixd_advice_missed_ratio{}"), 0.05);
  EXPECT_EQ(shown.at("prefixd_evicted_bytes_total{}"), 4096);
  EXPECT_EQ(shown.at("prefixd_ssd_written_bytes_total{cause=rewritten}"), 50);
  EXPECT_EQ(shown.at("prefixd_ssd_write_amplification_ratio{}"), 1.5);
}

TEST(MetricsTest, CallsAreCountedByVerbAndResult) {
  block::Stats stats;
  stats.counters = {{"rpc.acquire", 10},
                    {"rpc.acquire.refused.bad_request", 2},
                    {"rpc.acquire.refused.deadline", 1},
                    {"rpc.commit", 4}};
  const auto shown = Shown(stats);
  EXPECT_EQ(shown.at("prefixd_requests_total{verb=acquire,result=ok}"), 7);
  EXPECT_EQ(shown.at("prefixd_requests_total{verb=acquire,result=bad_request}"), 2);
  EXPECT_EQ(shown.at("prefixd_requests_total{verb=acquire,result=deadline}"), 1);
  EXPECT_EQ(shown.at("prefixd_requests_total{verb=commit,result=ok}"), 4);
}

TEST(MetricsTest, AHistogramIsCumulativeAndInSeconds) {
  block::LatencyHistogram times;
  const auto add = [&times](uint64_t us) {
    ++times.buckets[static_cast<size_t>(std::bit_width(us) - 1)];
    ++times.count;
    times.sum_us += us;
  };
  for (const uint64_t us : {3, 15, 16, 100, 4'000'000, 100'000'000}) add(us);
  Families families;
  families.Histogram("x_seconds", "Help.", times);
  const prometheus::ClientMetric::Histogram shown = families.Take()[0].metric[0].histogram;
  EXPECT_EQ(shown.sample_count, 6u);
  EXPECT_DOUBLE_EQ(shown.sample_sum, 104.000134);
  EXPECT_DOUBLE_EQ(shown.bucket.front().upper_bound, 16e-6);
  EXPECT_EQ(shown.bucket.front().cumulative_count, 2u) << "all below the first bound";
  EXPECT_EQ(shown.bucket[1].cumulative_count, 3u) << "16 us is not below 16 us";
  EXPECT_DOUBLE_EQ(shown.bucket.back().upper_bound, 16.777216);
  EXPECT_EQ(shown.bucket.back().cumulative_count, 5u) << "the rest is above every bound";
  for (size_t i = 1; i < shown.bucket.size(); ++i) {
    EXPECT_DOUBLE_EQ(shown.bucket[i].upper_bound, 2 * shown.bucket[i - 1].upper_bound);
    EXPECT_GE(shown.bucket[i].cumulative_count, shown.bucket[i - 1].cumulative_count);
  }
}

TEST(MetricsTest, AgesReachFromAPartOfASecondToWeeks) {
  block::AgeHistogram ages;
  for (const uint64_t ms : {uint64_t{0}, uint64_t{100}, uint64_t{5000}, uint64_t{86'400'000}}) {
    ages.Add(ms);
  }
  ages.Add(uint64_t{400} * 86'400'000);  // more than a year
  Families families;
  families.Histogram("x_seconds", "Help.", ages);
  const prometheus::ClientMetric::Histogram shown = families.Take()[0].metric[0].histogram;
  EXPECT_DOUBLE_EQ(shown.bucket.front().upper_bound, 0.128);
  EXPECT_EQ(shown.bucket.front().cumulative_count, 2u);
  EXPECT_GT(shown.bucket.back().upper_bound, 20 * 86'400);
  EXPECT_EQ(shown.bucket.back().cumulative_count, 4u);
  EXPECT_EQ(shown.sample_count, 5u);
}

// --- spaces ---

TEST(SpaceSeriesTest, TheSpacesThatAskForMostHaveSeriesAndTheRestIsOne) {
  block::Stats stats;
  for (uint32_t i = 0; i < 1000; ++i) stats.spaces.push_back(Space(i, 100 + i, i));
  AddTotals(&stats, 77);
  SpaceSeries series(50);
  const auto shown = Advance(&series, stats);
  double sum = 0;
  size_t labels = 0;
  for (const auto& [name, value] : shown) {
    if (!name.starts_with("prefixd_tokens_requested_total{")) continue;
    sum += value;
    ++labels;
  }
  EXPECT_EQ(labels, size_t{50} + 1);
  EXPECT_EQ(sum, static_cast<double>(stats.counters[0].value)) << "no token is lost or doubled";
  EXPECT_EQ(shown.at(Requested(999)), 1099);
  EXPECT_FALSE(shown.contains(Requested(0)));
  EXPECT_EQ(shown.at("prefixd_space_ram_bytes{space=other}"), 950 * 10);
  EXPECT_EQ(shown.at("prefixd_spaces{}"), 1000);
  EXPECT_EQ(shown.at("prefixd_space_info{space=" + SpaceLabel(Space(999, 0).id) +
                     ",model=model 999,tenant=local,block_tokens=64}"),
            1);
}

TEST(SpaceSeriesTest, NoCounterFallsWhenASpaceLosesItsSeriesOrIsForgotten) {
  SpaceSeries series(2);
  block::Stats stats;
  stats.spaces = {Space(1, 1000), Space(2, 500), Space(3, 10)};
  AddTotals(&stats);
  auto shown = Advance(&series, stats);
  EXPECT_EQ(shown.at(Requested(1)), 1000);
  EXPECT_EQ(shown.at(kOtherRequested), 10);

  stats.spaces[2] = Space(3, 600);  // not a quarter more than the second
  AddTotals(&stats);
  shown = Advance(&series, stats);
  EXPECT_EQ(shown.at(Requested(2)), 500) << "a series stays where it is for small differences";
  EXPECT_EQ(shown.at(kOtherRequested), 600);

  stats.spaces[2] = Space(3, 700);
  AddTotals(&stats);
  shown = Advance(&series, stats);
  EXPECT_FALSE(shown.contains(Requested(2)));
  EXPECT_EQ(shown.at(Requested(3)), 100) << "what was counted before stays in other";
  EXPECT_EQ(shown.at(kOtherRequested), 600);

  stats.spaces[1] = Space(2, 530);
  AddTotals(&stats);
  EXPECT_EQ(Advance(&series, stats).at(kOtherRequested), 630);

  stats.spaces.erase(stats.spaces.begin());  // forgotten; the totals keep what it counted
  AddTotals(&stats, 1000);
  shown = Advance(&series, stats);
  EXPECT_FALSE(shown.contains(Requested(1)));
  EXPECT_EQ(shown.at(kOtherRequested), 630);
}

TEST(SpaceSeriesTest, OtherDoesNotFallWhenTotalsWereReadBeforeTheSpaces) {
  SpaceSeries series(2);
  block::Stats stats;
  stats.spaces = {Space(1, 1000)};
  AddTotals(&stats, 10);
  EXPECT_EQ(Advance(&series, stats).at(kOtherRequested), 10);
  stats.spaces = {Space(1, 1100)};
  stats.counters = {{"tokens.requested", 1105}};
  EXPECT_EQ(Advance(&series, stats).at(kOtherRequested), 10);
  stats.counters = {{"tokens.requested", 1120}};
  EXPECT_EQ(Advance(&series, stats).at(kOtherRequested), 20);
}

TEST(SpaceSeriesTest, ASpaceThatComesAgainCountsOn) {
  SpaceSeries series(2);
  block::Stats stats;
  stats.spaces = {Space(1, 1000)};
  AddTotals(&stats);
  Advance(&series, stats);
  stats.spaces = {Space(1, 40)};  // forgotten and opened again between two scrapes
  AddTotals(&stats, 1000);
  const auto shown = Advance(&series, stats);
  EXPECT_EQ(shown.at(Requested(1)), 1040);
  EXPECT_EQ(shown.at(kOtherRequested), 0);
}

// S3, the size; tests/metrics says how long a real daemon takes.
TEST(SpaceSeriesTest, S3AScrapeOfAThousandSpacesIsBounded) {
  block::Stats stats;
  for (uint32_t i = 0; i < 1000; ++i) {
    stats.spaces.push_back(Space(i, 1'000'000'000 + i, 999'999'999));
    stats.spaces.back().identity.model = std::string(5000, 'm');
  }
  AddTotals(&stats);
  const Collector collector([&stats] { return stats; }, 50);
  const auto families = collector.Collect();
  size_t most = 0;
  for (const MetricFamily& family : families) most = std::max(most, family.metric.size());
  EXPECT_LE(most, 3 * (size_t{50} + 1));
}

// --- a real cache ---

class CollectorTest : public testing::DaemonTest {
 protected:
  std::map<std::string, double> Scrape() { return Values(collector_.Collect()); }
  const Collector collector_{[this] { return cache_->GetStats(); }, 50};
};

TEST_F(CollectorTest, AScrapeShowsWhatGetStatsShows) {
  const testing::Tokens tokens = testing::SomeTokens(1, 200);
  v1::CommitReply commit;
  ASSERT_TRUE(worker_->Store(identity_, space_, tokens, &commit).ok());
  v1::AcquireReply acquired;
  ASSERT_TRUE(worker_->Acquire(space_, tokens, &acquired).ok());
  v1::AcquireReply refused;
  EXPECT_FALSE(worker_->Acquire(space_ + 1, tokens, &refused).ok());

  const auto shown = Scrape();
  const v1::GetStatsReply stats = worker_->Stats();
  ASSERT_EQ(stats.spaces_size(), 1);
  const auto& space = stats.spaces(0);
  block::SpaceId id{};
  std::memcpy(id.data(), space.space_id().data(), id.size());
  const std::string label = SpaceLabel(id);
  EXPECT_EQ(shown.at("prefixd_tokens_requested_total{space=" + label + "}"), 200);
  EXPECT_EQ(space.tokens().requested(), 200u);
  EXPECT_EQ(shown.at("prefixd_tokens_restorable_total{space=" + label + ",tier=ram}"),
            acquired.answers(0).restorable_tokens());
  EXPECT_EQ(shown.at("prefixd_tokens_requested_total{space=other}"), 0);
  EXPECT_EQ(shown.at("prefixd_requests_total{verb=acquire,result=ok}"), 1);
  EXPECT_EQ(shown.at("prefixd_requests_total{verb=acquire,result=not_found}"), 1);
  EXPECT_EQ(shown.at("prefixd_refused_total{reason=not_found}"), 1);
  EXPECT_EQ(shown.at("prefixd_leases{}"), 1);
  EXPECT_EQ(shown.at("prefixd_leased_bytes{}"), stats.leased_bytes());
  EXPECT_EQ(shown.at("prefixd_ram_budget_bytes{}"), stats.ram_budget_bytes());
  EXPECT_GT(shown.at("prefixd_ram_used_bytes{part=arena}"), 0);
  EXPECT_EQ(shown.at("prefixd_space_stored_tokens{space=" + label + "}"), 200);
  EXPECT_TRUE(shown.contains("prefixd_request_duration_seconds{verb=acquire}"));
  EXPECT_TRUE(shown.contains("prefixd_lookup_phase_duration_seconds{phase=match}"));
  EXPECT_TRUE(shown.contains("prefixd_block_reuse_gap_seconds{}"));
  EXPECT_GT(shown.at("process_start_time_seconds{}"), 1.5e9);
  EXPECT_GT(shown.at("process_resident_memory_bytes{}"), 1e6);
  for (const auto& [name, value] : shown)
    EXPECT_FALSE(name.starts_with("prefixd_unlisted")) << name;
}

}  // namespace
}  // namespace prefixd::daemon
