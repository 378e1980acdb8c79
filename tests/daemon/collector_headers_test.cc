#include "daemon/tracing/collector_headers.h"

#include <gtest/gtest.h>

#include <string>

namespace prefixd::daemon {
namespace {

std::string Of(const absl::StatusOr<std::string>& headers) {
  return headers.ok() ? *headers : std::string(headers.status().message());
}
std::string OfFile(const std::string& text) { return Of(ParseCollectorHeaders(text)); }
std::string OfVariable(const std::string& value) {
  return Of(CollectorHeadersOfEnvironment({{"OTEL_EXPORTER_OTLP_HEADERS", value}}));
}

TEST(CollectorHeadersTest, LinesOfAFileBecomeHeaders) {
  EXPECT_EQ(OfFile(""), "");
  EXPECT_EQ(OfFile("# of the collector\n\nAuthorization: Bearer a:b=c\r\n  X-Scope-OrgID:7  "),
            "Authorization: Bearer a:b=c\r\nX-Scope-OrgID: 7\r\n");
}

TEST(CollectorHeadersTest, OpenTelemetrysVariablesAreDecoded) {
  EXPECT_EQ(Of(CollectorHeadersOfEnvironment({})), "");
  EXPECT_EQ(OfVariable("Authorization=Bearer%20a%3Db, x-tenant = 7 ,"),
            "Authorization: Bearer a=b\r\nx-tenant: 7\r\n");
  EXPECT_EQ(Of(CollectorHeadersOfEnvironment({{"OTEL_EXPORTER_OTLP_HEADERS", "a=1"},
                                              {"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "b=2"}})),
            "b: 2\r\n");
}

TEST(CollectorHeadersTest, WhatWouldBreakTheRequestIsRefusedAndNotQuoted) {
  EXPECT_EQ(OfVariable("a=x%0d%0aHost:%20evil"),
            "header 1 has a value with other than printable ASCII");
  EXPECT_EQ(OfVariable("a=%0"), "header 1 has a '%' without two hex digits");
  EXPECT_EQ(OfVariable("a=1,secret"), "header 2 is no name=value");
  EXPECT_EQ(OfFile("a: 1\nsecret"), "header 2 is no \"Name: value\"");
  EXPECT_EQ(OfFile(": secret"), "header 1 has no valid name");
  EXPECT_EQ(OfFile("a b: secret"), "header 1 has no valid name");
  EXPECT_EQ(OfFile("a: s\x7f"), "header 1 has a value with other than printable ASCII");
  for (const char* own : {"host", "Content-Length", "transfer-encoding", "connection"})
    EXPECT_EQ(OfFile(std::string(own) + ": 1"), "header 1 is one that prefixd sends itself") << own;
  EXPECT_EQ(OfFile("a: " + std::string(9000, 'x')),
            "header 1 makes them longer than 8192 bytes together");
}

}  // namespace
}  // namespace prefixd::daemon
