// The gate where a caller is looked at twice, and is gone between: what no client can time.
#include "daemon/access/gate.h"

#include <fstream>

#include "grpcpp/test/server_context_test_spouse.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "tests/daemon/fixture.h"

namespace prefixd::testing {
namespace {

using daemon::Gate;
using grpc::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kVerb[] = "PrefixCache.Match";
constexpr block::SessionId kSession{7};

// A call with a token.
struct Caller {
  explicit Caller(uint8_t seed) {
    secret.fill(std::byte{seed});
    spouse.AddClientMetadata(wire::kBearerKey, wire::BearerText(secret));
  }
  base::Secret secret;
  grpc::ServerContext context;
  grpc::testing::ServerContextTestSpouse spouse{&context};
};

class GateTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    Write({Entry("w", w_, "a"), Entry("b", b_, "b")});
    gate_ = std::make_unique<Gate>(cache_.get(), std::nullopt, path_);
    auto audit = daemon::AuditLog::Open("");
    ASSERT_TRUE(audit.ok() && gate_->Open(*audit).ok());
    gate_->set_end_session([this](block::SessionId session, const grpc::Status& status) {
      ended_.push_back(session.value);
      EXPECT_EQ(status.error_code(), StatusCode::ABORTED);
    });
  }
  static std::string Entry(const std::string& name, const Caller& caller, const std::string& tenant,
                           const std::string& more = "") {
    return R"({"name": ")" + name + R"(", "role": "worker", "sha256": ")" +
           base::ToHex(base::Sha256(caller.secret)) + R"(", "tenant": ")" + tenant + "\"" + more +
           "}";
  }
  // Each file is another one to stat().
  void Write(const std::vector<std::string>& entries) {
    std::string text = R"({"tokens": [)";
    for (size_t i = 0; i < entries.size(); ++i) text += (i == 0 ? "" : ", ") + entries[i];
    const std::string fresh = path_ + std::to_string(++files_);
    std::ofstream(fresh) << text << "]}";
    std::filesystem::rename(fresh, path_);
  }
  StatusCode Session(const Caller& caller, block::SessionId session = kSession) {
    return static_cast<StatusCode>(gate_->CheckSession(caller.context, session).code());
  }

  const Caller w_{1}, b_{2}, unknown_{3};
  const std::string path_ = dir_.path() + "/access.json";
  int files_ = 0;
  std::vector<uint64_t> ended_;
  std::unique_ptr<Gate> gate_;
};

// S6
TEST_F(GateTest, S6ACallerThatIsGoneBetweenTwoLooksIsRefused) {
  const Gate::Admission admitted = gate_->Check(w_.context, kVerb);
  ASSERT_TRUE(admitted.ok());
  auto seat = gate_->TakeSeat(admitted);
  ASSERT_TRUE(seat.ok() && *seat != nullptr);
  (*seat)->Bind(kSession);
  EXPECT_EQ(Session(w_), StatusCode::OK);
  Write({Entry("b", b_, "b")});
  ASSERT_TRUE(gate_->Check(b_.context, kVerb).ok());  // somebody's call reads the file again
  EXPECT_THAT(ended_, ElementsAre(kSession.value));
  EXPECT_EQ(Session(w_), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ((*seat)->ChargeLease(1).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(gate_->Check(w_.context, kVerb).status.error_code(), StatusCode::UNAUTHENTICATED);
}

// S6
TEST_F(GateTest, S6ASessionStaysOfTheTenantThatItsCallerHad) {
  auto seat = gate_->TakeSeat(gate_->Check(w_.context, kVerb));
  ASSERT_TRUE(seat.ok());
  (*seat)->Bind(kSession);
  EXPECT_EQ(Session(b_), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Session(unknown_), StatusCode::UNAUTHENTICATED);
  Write({Entry("w", w_, "b"), Entry("b", b_, "a")});
  ASSERT_TRUE(gate_->Check(w_.context, kVerb).ok());
  EXPECT_EQ(gate_->Check(w_.context, kVerb).tenant, "b");
  EXPECT_EQ(Session(w_), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(*gate_->TenantOf(w_.context, kSession), "a");
}

// S6
TEST_F(GateTest, S6NobodyNamesASessionThatIsNotAttached) {
  EXPECT_EQ(Session(w_), StatusCode::NOT_FOUND);
  EXPECT_FALSE(gate_->TenantOf(w_.context, kSession).ok());
  auto seat = gate_->TakeSeat(gate_->Check(w_.context, kVerb));
  ASSERT_TRUE(seat.ok());
  (*seat)->Bind(kSession);
  EXPECT_EQ(Session(w_), StatusCode::OK);
  seat->reset();
  EXPECT_EQ(Session(w_), StatusCode::NOT_FOUND);
  EXPECT_FALSE(gate_->TenantOf(w_.context, kSession).ok());
}

// S6: what is in use while there is no limit counts once there is one.
TEST_F(GateTest, S6ALimitThatIsSetLaterHoldsForWhatIsInUse) {
  const auto seat = gate_->TakeSeat(gate_->Check(w_.context, kVerb));
  ASSERT_TRUE(seat.ok());
  auto held = (*seat)->ChargeLease(1000);
  ASSERT_TRUE(held.ok());
  Write({Entry("w", w_, "a", R"(, "sessions": 1, "lease_bytes": 1500)"), Entry("b", b_, "b")});
  const Gate::Admission admitted = gate_->Check(w_.context, kVerb);
  EXPECT_EQ(gate_->TakeSeat(admitted).status().code(), absl::StatusCode::kResourceExhausted);
  const absl::Status refused = (*seat)->ChargeLease(501).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("hold 1000 bytes, at most 1500"));
  EXPECT_TRUE((*seat)->ChargeLease(500).ok());
  EXPECT_EQ((*seat)->ChargeLease(~uint64_t{0}).status().code(),
            absl::StatusCode::kResourceExhausted);
  held->reset();
  EXPECT_TRUE((*seat)->ChargeLease(1500).ok());
}

}  // namespace
}  // namespace prefixd::testing
