#include "daemon/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "daemon/budgets.h"
#include "daemon/listen_address.h"
#include "daemon/request_log.h"
#include "tests/daemon/fixture.h"

namespace prefixd::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const Environment kEmpty = {{"XDG_RUNTIME_DIR", "/tmp/r"}, {"HOME", "/tmp/h"}};
constexpr uint64_t kGiB = uint64_t{1} << 30;

Config Load(const std::vector<std::string>& args, Environment environment = kEmpty) {
  const auto loaded = LoadConfig(args, environment);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? loaded->config : Config();
}

std::string Refusal(const std::vector<std::string>& args, Environment environment = kEmpty) {
  const auto loaded = LoadConfig(args, environment);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(loaded.status().message());
}

Setting Find(const Config& config, const std::string& name) {
  for (const Setting& setting : config.settings) {
    if (setting.name == name) return setting;
  }
  return {};
}

class ConfigTest : public ::testing::Test {
 protected:
  std::string File(const std::string& text) {
    std::ofstream(dir_.path() + "/c.conf") << text;
    return dir_.path() + "/c.conf";
  }
  testing::TempDir dir_;
};

TEST_F(ConfigTest, TheShippedFileHoldsEveryDefault) {
  const Config plain = Load({});
  const Config filed = Load({"--config", PREFIXD_SOURCE_DIR "/deploy/prefixd.conf"});
  ASSERT_EQ(plain.settings.size(), filed.settings.size());
  for (size_t i = 0; i < plain.settings.size(); ++i) {
    EXPECT_EQ(filed.settings[i].source, "file")
        << plain.settings[i].name << " is missing in deploy/prefixd.conf";
    EXPECT_EQ(filed.settings[i].value, plain.settings[i].value) << plain.settings[i].name;
    EXPECT_EQ(plain.settings[i].source, "default");
  }
}

std::string Shipped(const std::string& name) {
  std::ifstream file(PREFIXD_SOURCE_DIR "/deploy/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(ConfigTest, TheShippedUnitOverridesNothingOfTheShippedFile) {
  const std::string unit = Shipped("prefixd.service");
  EXPECT_THAT(unit, HasSubstr("\nExecStart=/usr/bin/prefixd --config /etc/prefixd/prefixd.conf\n"));
  EXPECT_THAT(unit, ::testing::Not(HasSubstr("\nEnvironment=PREFIXD_")));
}

TEST_F(ConfigTest, TheShippedUnitMayWriteToTheShippedArenaMount) {
  const std::string mount = Shipped("run-prefixd_arena.mount");
  const size_t at = mount.find("\nWhere=") + 7;
  const std::string where = mount.substr(at, mount.find('\n', at) - at);
  EXPECT_THAT(Shipped("prefixd.service"), HasSubstr("\nReadWritePaths=-" + where + "\n"));
}

TEST_F(ConfigTest, AFlagWinsOverTheEnvironmentOverTheFileOverTheDefault) {
  const std::string file = File("ram = \"1GiB\"\nssd = \"2GiB\"\nthreads = 32\n");
  Environment environment = kEmpty;
  environment["PREFIXD_RAM"] = "3GiB";
  environment["PREFIXD_SSD"] = "4GiB";
  environment["PREFIXD_CONFIG"] = file;
  const Config config = Load({"--ram", "5GiB"}, environment);
  EXPECT_EQ(config.ram.bytes, 5 * kGiB);
  EXPECT_EQ(Find(config, "ram").source, "flag");
  EXPECT_EQ(config.ssd.bytes, 4 * kGiB);
  EXPECT_EQ(Find(config, "ssd").source, "environment");
  EXPECT_EQ(config.threads, 32);
  EXPECT_EQ(Find(config, "threads").source, "file");
  EXPECT_EQ(config.block_tokens, 64u);
  EXPECT_EQ(Find(config, "block-tokens").source, "default");
}

TEST_F(ConfigTest, WhatIsNoSettingIsRefused) {
  EXPECT_THAT(Refusal({"--ramm", "1GiB"}), HasSubstr("--ramm"));
  EXPECT_THAT(Refusal({"serve"}), HasSubstr("serve"));
  EXPECT_THAT(Refusal({"--ram", "1GiB", "--ram", "2GiB"}), HasSubstr("ram"));
  EXPECT_THAT(Refusal({"--config", File("ramm = 1\n")}),
              HasSubstr("\"ramm\", which is not a setting"));
  EXPECT_THAT(Refusal({"--config", File("[daemon]\nram = 1\n")}), HasSubstr("\"daemon.ram\""));
  EXPECT_THAT(Refusal({"--config", dir_.path() + "/none"}), HasSubstr("cannot read"));
  Environment environment = kEmpty;
  environment["PREFIXD_RAMM"] = "1";
  EXPECT_THAT(Load({}, environment).unknown,
              ::testing::ElementsAre("PREFIXD_RAMM (did you mean PREFIXD_RAM?)"));
}

TEST_F(ConfigTest, AMistypedNameIsAnsweredWithItsLineAndTheNearestKnownName) {
  EXPECT_THAT(Refusal({"--ssd-flor", "1GiB"}), HasSubstr("did you mean --ssd-floor?"));
  EXPECT_THAT(Refusal({"--ssd-flor=1GiB"}), HasSubstr("did you mean --ssd-floor?"));
  const std::string file = File("# ours\nram = \"1GiB\"\nssd_floor = \"1GiB\"\n");
  EXPECT_THAT(Refusal({"--config", file}),
              HasSubstr(file + ", line 3 sets \"ssd_floor\", which is not a setting; did you mean "
                               "ssd-floor?"));
  const std::string twice = File("ram = \"1GiB\"\n\nram = \"2GiB\"\n");
  EXPECT_THAT(Refusal({"--config", twice}), HasSubstr(twice + ", line 3 must give ram one value"));
}

TEST_F(ConfigTest, AValueOfTheFileThatDoesNotParseIsRefusedWithItsLine) {
  const std::string file = File("# ours\n\n  ram = \"many\"\n");
  EXPECT_THAT(Refusal({"--config", file}), HasSubstr("ram (file " + file + ", line 3): "));
}

TEST_F(ConfigTest, WhatDoesNotParseIsRefusedWithNameAndSource) {
  const std::vector<std::pair<std::string, std::string>> bad = {{"ram", "many"},
                                                                {"ram", "0"},
                                                                {"ram", "120%"},
                                                                {"ssd", "-1"},
                                                                {"ssd-floor", "10%"},
                                                                {"listen", "host"},
                                                                {"listen", "example.com:1"},
                                                                {"block-tokens", "48"},
                                                                {"segment-bytes", "1KiB"},
                                                                {"direct-io", "maybe"},
                                                                {"drain-deadline", "soon"},
                                                                {"drain-deadline", "-1s"},
                                                                {"log-level", "loud"},
                                                                {"log-interval", "5"},
                                                                {"threads", "1"},
                                                                {"socket", ""}};
  for (const auto& [name, value] : bad) {
    Environment environment = kEmpty;
    std::string variable = "PREFIXD_" + name;
    for (char& c : variable) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
    environment[variable] = value;
    EXPECT_THAT(Refusal({}, environment), HasSubstr(name + " (environment)"))
        << name << "=" << value;
  }
}

TEST_F(ConfigTest, ListeningBeyondLoopbackMustBeSaidAloud) {
  EXPECT_EQ(Load({"--listen", "127.0.0.1:7777"}).listen, "127.0.0.1:7777");
  EXPECT_EQ(Load({"--listen", "[::1]:7777"}).listen, "[::1]:7777");
  EXPECT_THAT(Refusal({"--listen", "0.0.0.0:7777"}), HasSubstr("--insecure"));
  EXPECT_THAT(Refusal({"--listen", "[::]:7777"}), HasSubstr("--insecure"));
  EXPECT_EQ(Load({"--listen", "0.0.0.0:7777", "--insecure"}).listen, "0.0.0.0:7777");
}

// T5
TEST_F(ConfigTest, TheAdminSocketAndTheTokenStandBesideTheSocket) {
  const Config config = Load({"--socket", "/tmp/p/prefixd.sock"});
  EXPECT_EQ(config.admin_socket, "/tmp/p/prefixd.admin.sock");
  EXPECT_EQ(config.token_file, "/tmp/p/prefixd.token");
  EXPECT_FALSE(config.admin_group.has_value());
  EXPECT_EQ(Load({"--admin-socket", "off"}).admin_socket, "");
  EXPECT_EQ(Load({"--admin-socket", "/tmp/a"}).admin_socket, "/tmp/a");
  EXPECT_EQ(Load({"--admin-group", "root"}).admin_group, gid_t{0});
  EXPECT_EQ(Load({"--admin-group", "4711"}).admin_group, gid_t{4711});
  EXPECT_THAT(Refusal({"--admin-group", "no such group"}), HasSubstr("a group of this host"));
  EXPECT_THAT(Refusal({"--socket", "/tmp/s", "--admin-socket", "/tmp/s"}),
              HasSubstr("wants a path of its own"));
}

TEST_F(ConfigTest, OpenTelemetrysVariablesAreLookedAtWhereThereIsACollectorThatNeedsThem) {
  const auto with = [](const std::string& endpoint, const char* name, const char* value) {
    return Load({"--otlp-endpoint", endpoint}, {{name, value}}).tracing;
  };
  // A collector without TLS has no certificate.
  const char* const ca = "OTEL_EXPORTER_OTLP_CERTIFICATE";
  EXPECT_TRUE(with("http://c:1", ca, "/nonexistent").collector.has_value());
  EXPECT_EQ(with("off", ca, "/nonexistent").unusable, "");
  const Config::Tracing untrusted = with("https://c:1", ca, "/nonexistent");
  EXPECT_FALSE(untrusted.collector.has_value());
  EXPECT_THAT(untrusted.unusable, HasSubstr("OTEL_EXPORTER_OTLP_CERTIFICATE: the file of"));
  const char* const headers = "OTEL_EXPORTER_OTLP_HEADERS";
  EXPECT_EQ(with("http://c:1", headers, "a=1").headers, "a: 1\r\n");
  EXPECT_EQ(with("off", headers, "a").unusable, "");
  const Config::Tracing nameless = with("http://c:1", headers, "a");
  EXPECT_FALSE(nameless.collector.has_value());
  EXPECT_EQ(nameless.unusable, "OTEL_EXPORTER_OTLP_HEADERS: header 1 is no name=value");
  EXPECT_EQ(Load({"--otlp-endpoint", "http://c:1", "--otlp-headers-file", "off"}, {{headers, "a"}})
                .tracing.unusable,
            "");
  EXPECT_THAT(Refusal({"--otlp-endpoint", "http://c:1", "--otlp-ca-file", "/ca.pem"}),
              HasSubstr("otlp-ca-file: certificates are for TLS, and http://c:1"));
}

TEST_F(ConfigTest, TenantsComeFromTheConnection) {
  EXPECT_EQ(TenantOf("unix:"), "local");
  EXPECT_EQ(TenantOf("unix:/run/prefixd/prefixd.sock"), "local");
  EXPECT_EQ(TenantOf("ipv4:127.0.0.1:4711"), "local");
  EXPECT_EQ(TenantOf("ipv6:[::1]:4711"), "local");
  EXPECT_EQ(TenantOf("ipv6:%5B::1%5D:4711"), "local");
  EXPECT_EQ(TenantOf("ipv4:10.0.0.7:4711"), "network");
  EXPECT_EQ(TenantOf("ipv6:[::12]:4711"), "network");
}

TEST_F(ConfigTest, HelpAndVersionArePrintedNotServed) {
  EXPECT_THAT(LoadConfig({"--help"}, kEmpty)->print, HasSubstr("--ssd-floor"));
  EXPECT_THAT(LoadConfig({"--version"}, kEmpty)->print, HasSubstr("prefixd 0."));
}

TEST(BudgetsTest, DefaultsAreAFifthOfMemoryAndATenthOfTheDisk) {
  const Budgets budgets = PlanBudgets(
      Load({}), {.available_memory = 10 * kGiB, .disk_bytes = 100 * kGiB, .disk_free = 90 * kGiB});
  EXPECT_EQ(budgets.ram_bytes, 2 * kGiB);
  EXPECT_EQ(budgets.ssd_bytes, 10 * kGiB);
}

TEST(BudgetsTest, TheSsdTierKeepsTheFloorFree) {
  const Machine machine{
      .available_memory = kGiB, .disk_bytes = 1000 * kGiB, .disk_free = 15 * kGiB};
  EXPECT_EQ(PlanBudgets(Load({}), machine).ssd_bytes, 5 * kGiB);
}

TEST(BudgetsTest, T6BelowTheFloorTheSsdTierWaitsAndSaysWhy) {
  const Machine machine{.available_memory = kGiB, .disk_bytes = 1000 * kGiB, .disk_free = 9 * kGiB};
  for (const char* ssd : {"auto", "5GiB"}) {
    const Budgets budgets = PlanBudgets(Load({"--ssd", ssd}), machine);
    EXPECT_EQ(budgets.ssd_bytes, (std::string(ssd) == "auto" ? 100 : 5) * kGiB);
    EXPECT_EQ(budgets.ssd_off_why, "");
    EXPECT_THAT(budgets.ssd_waits_why, HasSubstr("9.0 GiB free, the floor is 10.0 GiB"));
  }
  EXPECT_EQ(PlanBudgets(Load({"--ssd-floor", "1GiB", "--ssd", "5GiB"}), machine).ssd_bytes,
            5 * kGiB);
}

TEST(BudgetsTest, ABudgetThatTheDiskHasNotIsTakenAndSaysWhatItHas) {
  const Machine machine{.available_memory = kGiB, .disk_bytes = 100 * kGiB, .disk_free = 50 * kGiB};
  const Budgets budgets = PlanBudgets(Load({"--ssd", "100TiB"}), machine);
  EXPECT_EQ(budgets.ssd_bytes, 100 * 1024 * kGiB);
  EXPECT_EQ(budgets.ssd_short_of, "40.0 GiB above the floor of 10.0 GiB");
  EXPECT_EQ(PlanBudgets(Load({"--ssd", "40GiB"}), machine).ssd_short_of, "");
}

TEST(BudgetsTest, ThisMachineHasMemoryAndADisk) {
  const auto machine = MeasureMachine("/tmp/prefixd/does/not/exist");
  ASSERT_TRUE(machine.ok());
  EXPECT_GT(machine->available_memory, 0u);
  EXPECT_GT(machine->disk_bytes, 0u);
}

TEST(RequestLogTest, LinesSayWhatWasFoundAndNeverTheTokens) {
  cache::Request request;
  request.tokens = {987654321, 987654322};
  cache::Acquired acquired;
  acquired.request_id = "a\nb";
  acquired.match.matched_tokens = 2;
  acquired.match.restorable_tokens = 1;
  acquired.match.kind = block::MatchKind::kLcp;
  acquired.match.shortened_by.push_back(
      {.reason = block::ShortenReason::kMaxTokens, .tokens_lost = 1});
  const std::string line = AcquireLine(request, acquired, 210);
  EXPECT_THAT(line, HasSubstr("acquire HIT kind=LCP request_id=a\\nb"));
  EXPECT_THAT(line, HasSubstr("prompt=2 matched=2 cached=1"));
  EXPECT_THAT(line, HasSubstr("shortened=max_tokens:1"));
  EXPECT_THAT(line, HasSubstr("time=210us"));
  EXPECT_THAT(line, Not(HasSubstr("98765432")));
  EXPECT_THAT(line, Not(HasSubstr("remote=")));
  acquired.match.remote_bytes = 4096;
  EXPECT_THAT(AcquireLine(request, acquired, 210), HasSubstr("ssd=0 B remote=4.0 KiB time="));
  EXPECT_THAT(AcquireLine(request, {}, 1), HasSubstr("acquire MISS"));
  acquired.times = {.wait_us = 100, .match_us = 7, .room_us = 90};
  request.remote_us = 20;
  EXPECT_THAT(
      SlowLine(request, acquired, 210),
      ::testing::AllOf(HasSubstr("slow: acquire HIT kind=LCP"),
                       HasSubstr("time=210us waited=100us remote=20us match=7us room=90us")));
  EXPECT_EQ(OwnMicros(request, acquired, 210), 130u);
  EXPECT_EQ(OwnMicros(request, acquired, 99), 20u);
  cache::CommitRequest commit;
  commit.tokens = 44;
  block::CommitAnswer answer;
  answer.stored_tokens = 27;
  answer.duplicate_tokens = 17;
  EXPECT_THAT(CommitLine(commit, answer, {}, 80),
              HasSubstr("commit tokens=44 stored=27 duplicate=17 entries=0 ram=0 B time=80us"));
}

TEST_F(ConfigTest, TheArenaOfASocketIsTheSameAtEveryStart) {
  const std::string path = AutoArenaPath("/run/prefixd/prefixd.sock");
  EXPECT_EQ(path, AutoArenaPath("/run/prefixd/../prefixd/prefixd.sock"));
  EXPECT_NE(path, AutoArenaPath("/run/prefixd/other.sock"));
  EXPECT_EQ(path.size(), std::string("/dev/shm/prefixd-0123456789abcdef.arena").size());
  EXPECT_EQ(LoadConfig({"--socket", "/run/prefixd/prefixd.sock"}, {{"HOME", "/h"}})->config.arena,
            path);
  EXPECT_EQ(LoadConfig({"--socket", "/s", "--arena", "/mnt/a"}, {{"HOME", "/h"}})->config.arena,
            "/mnt/a");
  EXPECT_EQ(LoadConfig({"--socket", "/s", "--arena", "off"}, {{"HOME", "/h"}})->config.arena, "");
}

TEST_F(ConfigTest, ASocketPathThatIsTooLongIsAWrongSetting) {
  const absl::Status status =
      LoadConfig({"--socket", "/" + std::string(107, 'l')}, {{"HOME", "/h"}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace prefixd::daemon
