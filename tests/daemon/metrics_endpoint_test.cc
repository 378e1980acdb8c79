// The HTTP server of the metrics, before clients of all kinds.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "daemon/metrics/endpoint.h"
#include "daemon/metrics/families.h"
#include "tests/daemon/program_fixture.h"

namespace prefixd::daemon {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A connection to the endpoint, closed at the end.
class Client {
 public:
  explicit Client(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{.tv_sec = 30, .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Client() { ::close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // False: the server closed the connection.
  bool Send(const std::string& text) {
    return ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  // Waits so long for the server to close the connection or to send something.
  bool WaitsInVain(std::chrono::microseconds limit) {
    const timeval patience{.tv_sec = 0, .tv_usec = limit.count()};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    char byte = 0;
    return ::recv(fd_, &byte, 1, 0) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
  std::string ReadAll() {
    std::string all;
    if (!connected_) return all;
    char buffer[4096];
    for (ssize_t n = 0; (n = ::recv(fd_, buffer, sizeof(buffer), 0)) > 0;)
      all.append(buffer, static_cast<size_t>(n));
    return all;
  }

 private:
  const int fd_;
  bool connected_ = false;
};

class OneValue final : public prometheus::Collectable {
 public:
  explicit OneValue(double value) : value_(value) {}
  std::vector<prometheus::MetricFamily> Collect() const override {
    ++collected;
    Families families;
    families.Gauge("some_value", "Help.", value_);
    return families.Take();
  }
  mutable std::atomic<int> collected{0};

 private:
  const double value_;
};

class EndpointTest : public ::testing::Test {
 protected:
  EndpointTest() {
    auto started = MetricsEndpoint::Start("127.0.0.1:0");
    EXPECT_TRUE(started.ok()) << started.status();
    endpoint_ = *std::move(started);
    endpoint_->Show(source_);
  }
  std::string Ask(const std::string& request) {
    Client client(endpoint_->port());
    client.Send(request);
    return client.ReadAll();
  }
  std::string Get(const std::string& path) { return Ask("GET " + path + " HTTP/1.1\r\n\r\n"); }

  const std::shared_ptr<OneValue> source_ = std::make_shared<OneValue>(7);
  std::unique_ptr<MetricsEndpoint> endpoint_;
};

TEST_F(EndpointTest, AScrapeGetsTheTextFormat) {
  EXPECT_GT(endpoint_->port(), 0);
  const std::string answer = Get("/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n# HELP some_value Help.\n# TYPE some_value gauge\n"
                               "some_value 7\n"));
  const std::string head = Ask("HEAD /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(head, EndsWith("\r\n\r\n")) << "no body";
}

TEST_F(EndpointTest, AClientThatPrefersOpenMetricsGetsThat) {
  const std::string answer =
      Ask("GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0;q=0.8,"
          "text/plain;version=0.0.4;q=0.5\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Content-Type: application/openmetrics-text; version=1.0.0; "
                                "charset=utf-8\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n# TYPE some_value gauge\n# HELP some_value Help.\n"
                               "some_value 7\n# EOF\n"));
}

TEST_F(EndpointTest, EverythingElseIsRefusedAndCollectsNothing) {
  for (const char* const path : {"/", "/metrics/", "/metricsx", "/../etc/passwd", "/%2e%2e/etc",
                                 "//metrics/..%2f..%2fetc%2fpasswd"}) {
    const std::string answer = Get(path);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 404") || answer.starts_with("HTTP/1.1 400") ||
                answer.empty())
        << path << ": " << answer;
  }
  EXPECT_THAT(Ask("POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n"),
              StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(Ask("DELETE /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  EXPECT_EQ(source_->collected, 0);
}

TEST_F(EndpointTest, ThePageIsServedOnlyWhereOneIsGivenAndNothingIsWrittenThroughIt) {
  EXPECT_THAT(Get("/page/"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get("/page/state.json"), StartsWith("HTTP/1.1 404"));
  auto started = MetricsEndpoint::Start("127.0.0.1:0", std::make_unique<Page>());
  ASSERT_TRUE(started.ok()) << started.status();
  endpoint_ = *std::move(started);
  endpoint_->Show(source_);
  const std::string here = " HTTP/1.1\r\nHost: localhost\r\n";
  const std::string page = Ask("GET /page/" + here + "\r\n");
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"));
  EXPECT_THAT(page, HasSubstr("X-Content-Type-Options: nosniff\r\n"));
  EXPECT_THAT(page, HasSubstr("Content-Security-Policy: default-src 'none';"));
  EXPECT_THAT(page, EndsWith("</html>\n"));
  EXPECT_THAT(Ask("HEAD /page/" + here + "\r\n"), EndsWith("\r\n\r\n"));
  EXPECT_THAT(Ask("GET /" + here + "\r\n"), HasSubstr("Location: /page/\r\n"));
  EXPECT_THAT(Ask("GET /page/state.json" + here + "\r\n"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(Ask("GET /page/ HTTP/1.1\r\nHost: evil.example\r\n\r\n"), StartsWith("HTTP/1.1 403"));
  for (const char* const method : {"POST", "PUT", "DELETE", "OPTIONS", "PATCH"}) {
    EXPECT_THAT(Ask(method + (" /page/state.json" + here) + "Content-Length: 0\r\n\r\n"),
                StartsWith("HTTP/1.1 405"))
        << method;
  }
  EXPECT_THAT(Get("/metrics"), EndsWith("some_value 7\n"));
  endpoint_->page()->Show(nullptr);
}

TEST_F(EndpointTest, WithoutACacheItSaysThatThereIsNoneAndGoesOnWithTheNext) {
  endpoint_->Show(nullptr);
  EXPECT_THAT(Get("/metrics"), StartsWith("HTTP/1.1 503"));
  endpoint_->Show(std::make_shared<OneValue>(8));
  EXPECT_THAT(Get("/metrics"), EndsWith("some_value 8\n"));
}

TEST_F(EndpointTest, BadAndHugeRequestsDoNotHurtTheNextOne) {
  Ask(std::string(1 << 20, 'x'));
  Ask("GET /metrics HTTP/1.1\r\nX: " + std::string(1 << 20, 'y') + "\r\n\r\n");
  Ask("GET /metrics HTTP/1.1\r\n" + std::string(20'000, '\n'));
  Ask("GET " + std::string(100'000, 'a') + " HTTP/1.1\r\n\r\n");
  Ask(std::string("\0\0\0\0\r\n\r\n", 8));
  Ask("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  std::string many = "GET /metrics HTTP/1.1\r\n";
  for (int i = 0; i < 2000; ++i) many += "a" + std::to_string(i) + ": b\r\n";
  Ask(many + "\r\n");
  EXPECT_THAT(Get("/metrics"), EndsWith("some_value 7\n"));
}

TEST_F(EndpointTest, ClientsThatHangDoNotKeepAScrapeOut) {
  std::vector<std::unique_ptr<Client>> hanging;
  for (int i = 0; i < 20; ++i) {
    hanging.push_back(std::make_unique<Client>(endpoint_->port()));
    hanging.back()->Send(i % 2 == 0 ? "GET /met" : "");
  }
  EXPECT_THAT(Get("/metrics"), EndsWith("some_value 7\n"));
}

TEST_F(EndpointTest, AClientThatSendsAByteNowAndThenIsCutOff) {
  Client client(endpoint_->port());
  const std::string request = "GET /metrics HTTP/1.1\r\nX: " + std::string(8000, 'y');
  size_t sent = 0;
  while (sent < request.size() && client.Send(request.substr(sent, 1)) &&
         client.WaitsInVain(std::chrono::milliseconds(20))) {
    ++sent;
  }
  EXPECT_LT(sent, request.size()) << "160 s of a header, and a thread was kept for all of them";
}

// Takes so long for a scrape as a cache with very many spaces does.
class SlowValue final : public prometheus::Collectable {
 public:
  static constexpr std::chrono::milliseconds kTakes{20};
  explicit SlowValue(std::chrono::milliseconds takes = kTakes) : takes_(takes) {}
  std::vector<prometheus::MetricFamily> Collect() const override {
    const auto end = std::chrono::steady_clock::now() + takes_;
    while (std::chrono::steady_clock::now() < end) {
    }
    return {{.name = "slow", .help = "", .type = prometheus::MetricType::Gauge, .metric = {{}}}};
  }

 private:
  const std::chrono::milliseconds takes_;
};

TEST_F(EndpointTest, ScrapesWithoutPauseTakeATenthOfTheTime) {
  endpoint_->Show(std::make_shared<SlowValue>());
  Get("/metrics");
  const auto first = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Get("/metrics"), StartsWith("HTTP/1.1 200"));
  EXPECT_GE(std::chrono::steady_clock::now() - first,
            3 * 10 * SlowValue::kTakes - SlowValue::kTakes);
}

TEST_F(EndpointTest, AScrapeThatWaitsForItsTurnHoldsUpNobodyWhoTakesTheSourceAway) {
  endpoint_->Show(std::make_shared<SlowValue>(std::chrono::seconds(1)));
  EXPECT_THAT(Get("/metrics"), StartsWith("HTTP/1.1 200"));
  // The next turn is in nine seconds.
  auto waits = std::async(std::launch::async, [this] { return Get("/metrics"); });
  for (int i = 0; i < 20; ++i) Get("/");  // by then it waits, most likely
  endpoint_->Show(nullptr);
  EXPECT_THAT(waits.get(), StartsWith("HTTP/1.1 503"));
}

TEST_F(EndpointTest, ItStopsWithoutWaitingForTheNextClient) {
  // Whoever hangs has a second; civetweb itself would look again after two.
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(MetricsEndpoint::Start("127.0.0.1:0").ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20));
}

TEST_F(EndpointTest, AnAddressInUseIsRefusedAndSaysSo) {
  const std::string taken = "127.0.0.1:" + std::to_string(endpoint_->port());
  const absl::Status status = MetricsEndpoint::Start(taken).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("metrics: cannot listen on " + taken));
  EXPECT_THAT(std::string(status.message()), HasSubstr("in use"));
  EXPECT_FALSE(MetricsEndpoint::Start("192.0.2.1:9464").ok()) << "not this host's";
}

TEST_F(EndpointTest, IPv6IsServedWhereTheHostHasIt) {
  const auto started = MetricsEndpoint::Start("[::1]:0");
  if (!started.ok()) GTEST_SKIP() << started.status();
  EXPECT_GT((*started)->port(), 0);
}

}  // namespace
}  // namespace prefixd::daemon

namespace prefixd::testing {
namespace {

class MetricsProgramTest : public ProgramTest {
 protected:
  std::vector<std::string> WithMetrics(const std::string& address = "127.0.0.1:0") {
    return Plus(Args(), "--metrics", address);
  }
  // The port that the log names.
  int Port() {
    EXPECT_TRUE(Says("metrics: http://127.0.0.1:"));
    const std::string log = Log(), before = "metrics: http://127.0.0.1:";
    return std::atoi(log.c_str() + log.rfind(before) + before.size());
  }
  static std::string Get(int port) {
    daemon::Client client(port);
    client.Send("GET /metrics HTTP/1.1\r\n\r\n");
    return client.ReadAll();
  }
};

TEST_F(MetricsProgramTest, TheLogNamesTheFreePortAndAStopIsClean) {
  const pid_t pid = Start(WithMetrics());
  ASSERT_TRUE(Serves());
  const int port = Port();
  EXPECT_THAT(Get(port), HasSubstr("prefixd_build_info{version=\""));
  ::kill(pid, SIGTERM);
  EXPECT_EQ(Wait(pid), daemon::kExitOk) << Log();
}

TEST_F(MetricsProgramTest, ScrapesBesideAStopEndItNeitherLateNorBadly) {
  const pid_t pid = Start(WithMetrics());
  ASSERT_TRUE(Serves());
  const int port = Port();
  daemon::Client hangs(port);
  hangs.Send("GET /metr");
  std::atomic<bool> stop{false};
  std::vector<std::thread> scrapers;
  for (int i = 0; i < 3; ++i) {
    scrapers.emplace_back([&] {
      while (!stop) Get(port);
    });
  }
  Get(port);
  ::kill(pid, SIGTERM);
  EXPECT_EQ(Wait(pid), daemon::kExitOk) << Log();
  stop = true;
  for (std::thread& scraper : scrapers) scraper.join();
}

TEST_F(MetricsProgramTest, ABadAddressIsNamedBeforeAStoreIsMade) {
  EXPECT_EQ(Wait(Start(WithMetrics("metrics.example:80"))), daemon::kExitUsage);
  EXPECT_THAT(Log(), HasSubstr("metrics (flag): \"metrics.example:80\" is not a numeric"));
  EXPECT_EQ(Wait(Start(WithMetrics("192.0.2.1:9464"))), daemon::kExitStart);
  EXPECT_THAT(Log(), HasSubstr("metrics: cannot listen on 192.0.2.1:9464"));
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/ssd/CURRENT"));
}

TEST_F(MetricsProgramTest, TwoDaemonsWantMetricsPortsOfTheirOwn) {
  Start(WithMetrics());
  ASSERT_TRUE(Serves());
  const std::string taken = "127.0.0.1:" + std::to_string(Port());
  const std::vector<std::string> second =
      Plus(Plus(Plus(Args("s2", "ssd2"), "--metrics", taken), "--arena", "off"), "--ssd", "off");
  EXPECT_EQ(Wait(Start(second)), daemon::kExitStart);
  EXPECT_THAT(Log(), HasSubstr("metrics: cannot listen on " + taken));
}

}  // namespace
}  // namespace prefixd::testing
