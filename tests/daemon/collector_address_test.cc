#include "daemon/tracing/collector_address.h"

#include <gtest/gtest.h>

#include <string>

namespace prefixd::daemon {
namespace {

std::string Read(const std::string& url) {
  const absl::StatusOr<CollectorAddress> address = ParseCollectorAddress(url);
  return address.ok() ? ToString(*address) : "refused";
}

TEST(CollectorAddressTest, UrlsOfCollectorsAreRead) {
  EXPECT_EQ(Read("http://localhost:4318/v1/traces"), "http://localhost:4318/v1/traces");
  EXPECT_EQ(Read("http://otel:4318"), "http://otel:4318/v1/traces");
  EXPECT_EQ(Read("http://otel/"), "http://otel:80/v1/traces");
  EXPECT_EQ(Read("http://[::1]:4318/a/b?c=d"), "http://[::1]:4318/a/b?c=d");
  EXPECT_EQ(Read("http://10.0.0.7:65535?x=1"), "http://10.0.0.7:65535/v1/traces?x=1");
  EXPECT_EQ(ParseCollectorAddress("http://[::1]:1/")->host, "::1");
  EXPECT_EQ(Read("https://otel.example"), "https://otel.example:443/v1/traces");
  EXPECT_EQ(Read("https://otel:4318/x"), "https://otel:4318/x");
  EXPECT_TRUE(ParseCollectorAddress("https://otel")->tls);
  EXPECT_FALSE(ParseCollectorAddress("http://otel")->tls);
}

TEST(CollectorAddressTest, WhatCannotBePostedToIsRefusedBeforeAStart) {
  for (const char* url :
       {"", "localhost:4318", "https://", "ftp://localhost", "http://", "http://:4318",
        "http://host:0", "http://host:65536", "http://host:-1", "http://host:4318x", "http://[::1",
        "http://[::1]4318", "http://[]:1", "http://user:secret@host:4318", "http://host:1/a b",
        "http://host:1/a\r\nX: y", "http://host:1/\x7f", "http://ho\xc3\xb6st:1", "http://h/#f"}) {
    EXPECT_EQ(Read(url), "refused") << url;
  }
  EXPECT_EQ(Read("http://host/" + std::string(3000, 'a')), "refused");
}

TEST(CollectorAddressTest, OpenTelemetrysVariablesNameOne) {
  EXPECT_EQ(CollectorOfEnvironment({}), "");
  EXPECT_EQ(CollectorOfEnvironment({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"}}),
            "http://c:4318/v1/traces");
  EXPECT_EQ(CollectorOfEnvironment({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/base/"}}),
            "http://c:4318/base/v1/traces");
  EXPECT_EQ(CollectorOfEnvironment({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"},
                                    {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:1/x"}}),
            "http://t:1/x");
  EXPECT_EQ(CollectorOfEnvironment({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317"},
                                    {"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}}),
            "");
  EXPECT_EQ(CollectorOfEnvironment({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"},
                                    {"OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"},
                                    {"OTEL_SDK_DISABLED", "True"}}),
            "");
}

TEST(CollectorAddressTest, OpenTelemetrysVariablesNameItsAuthorities) {
  EXPECT_EQ(CollectorCaOfEnvironment({}), "");
  EXPECT_EQ(CollectorCaOfEnvironment({{"OTEL_EXPORTER_OTLP_CERTIFICATE", "/a"}}), "/a");
  EXPECT_EQ(CollectorCaOfEnvironment({{"OTEL_EXPORTER_OTLP_CERTIFICATE", "/a"},
                                      {"OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "/b"}}),
            "/b");
}

}  // namespace
}  // namespace prefixd::daemon
