// What one caller can repeat fills no audit log, and what was left out is counted there.
#include "daemon/access/audit_log.h"

#include <fstream>

#include "tests/daemon/fixture.h"

namespace prefixd::testing {
namespace {

using daemon::AuditLog;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AuditLogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    spdlog::set_level(spdlog::level::off);
    auto opened = AuditLog::Open(Path(), &clock_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    log_ = *std::move(opened);
  }
  std::string Path() const { return dir_.path() + "/audit"; }
  std::vector<std::string> Lines() const {
    std::vector<std::string> lines;
    std::ifstream file(Path());
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  void Refuse(const std::string& who, int times, const std::string& reason = "role") {
    for (int i = 0; i < times; ++i) log_->WriteRefusal(who, reason, who + " is refused");
  }

  TempDir dir_;
  base::FakeClock clock_;
  std::shared_ptr<AuditLog> log_;
};

TEST_F(AuditLogTest, ARefusalThatRepeatsIsWrittenTenTimesAndThenCounted) {
  Refuse("r", 1000);
  EXPECT_EQ(Lines().size(), 10u);
  clock_.Advance(3 * AuditLog::kRefusalEveryUs);
  log_->Write("somebody clears");
  EXPECT_EQ(Lines().size(), 12u);
  EXPECT_THAT(Lines()[10], HasSubstr("990 more lines of r were left out, role"));
  EXPECT_THAT(Lines()[11], HasSubstr("somebody clears"));
  Refuse("r", 3);
  EXPECT_EQ(Lines().size(), 14u);  // one of the three that the time gave told of the others
}

TEST_F(AuditLogTest, OneCallersRefusalsHideNoOthers) {
  Refuse("r", 1000);
  Refuse("s", 1);
  Refuse("r", 1, "rate");
  ASSERT_EQ(Lines().size(), 12u);
  EXPECT_THAT(Lines()[10], HasSubstr("s is refused"));
}

TEST_F(AuditLogTest, WhatWasLeftOutIsToldWhenTheLogCloses) {
  Refuse("r", 15);
  log_.reset();
  ASSERT_EQ(Lines().size(), 11u);
  EXPECT_THAT(Lines().back(), HasSubstr("5 more lines of r were left out"));
}

// Names come from the access file; users of the admin socket may be many.
TEST_F(AuditLogTest, ManyCallersAreForgottenWithTheirCounts) {
  Refuse("first", 12);
  for (int i = 0; i < 3000; ++i) Refuse("user " + std::to_string(i), 1);
  size_t told = 0;
  for (const std::string& line : Lines()) {
    told += line.find("2 more lines of first were left out") != std::string::npos;
  }
  EXPECT_EQ(told, 1u);
}

TEST_F(AuditLogTest, TheStepsOfOneWorkHaveOneLine) {
  const auto step = [this](const std::string& who, const std::string& work, bool is_first) {
    log_->WriteStep({.who = who, .work = work, .is_first = is_first}, who + " " + work);
  };
  step("o", "verify", true);
  for (int i = 0; i < 100; ++i) step("o", "verify", false);
  EXPECT_THAT(Lines(), ElementsAre(HasSubstr("o verify")));
  step("o", "verify", true);  // a new request
  EXPECT_EQ(Lines().size(), 2u);
  step("p", "verify", false);  // nobody began it
  step("o", "purge", false);
  EXPECT_EQ(Lines().size(), 4u);
  clock_.Advance(AuditLog::kStepsWithinUs + 1);
  step("o", "verify", false);
  EXPECT_EQ(Lines().size(), 5u);
}

}  // namespace
}  // namespace prefixd::testing
