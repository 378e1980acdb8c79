// RedisStore against servers that a test scripts: answers that are late, half, wrong or elsewhere.
#include <atomic>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/clock.h"
#include "remote/redis_store.h"
#include "remote/slots.h"
#include "tests/remote/bytes.h"
#include "tests/remote/fake_redis.h"

namespace prefixd::remote {
namespace {

using testing::Bundle;
using ::testing::ElementsAre;
using testing::FakeRedis;
using ::testing::HasSubstr;
using testing::In;
using ::testing::IsEmpty;
using testing::Patiently;
using Answer = FakeRedis::Answer;
using Words = FakeRedis::Words;
using Outcome = FoundRecord::Outcome;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::shared_ptr<RedisStore> Open(std::vector<Endpoint> seeds, const base::Clock* clock = nullptr,
                                 const std::string& password = "") {
  RedisOptions options;
  options.seeds = std::move(seeds);
  options.seed = 1;
  options.user = password.empty() ? "" : "me";
  options.password = password;
  if (clock != nullptr) options.clock = clock;
  return RedisStore::Open(std::move(options)).value();
}

std::vector<Outcome> Outcomes(const std::vector<FoundRecord>& found) {
  std::vector<Outcome> outcomes;
  for (const FoundRecord& record : found) outcomes.push_back(record.outcome);
  return outcomes;
}

// The store asks for the server's settings over a connection that a call may use after it. What
// is wrong with them, or that they are not shown, stands in the status then.
void AwaitSettings(const RedisStore& store) {
  const auto deadline = steady_clock::now() + std::chrono::seconds(30);
  while (store.Status().warnings.empty() && steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
}

// A name whose slot is one of the first, or the last, half.
std::string NameIn(bool first_half, int number = 0) {
  for (int i = 0;; ++i) {
    std::string name = "{n" + std::to_string(number) + "-" + std::to_string(i) + "}";
    if ((SlotOf(name) < 8192) == first_half) return name;
  }
}

TEST(FakeServerTest, RecordsAreFoundByOnePipelineAndAnOldServerSpeaksRESP2) {
  FakeRedis server([](const Words& words) -> Answer {
    if (words[0] != "HGET") return {};
    return {words[1] == "there" ? FakeRedis::Bulk("record") : "$-1\r\n"};
  });
  const auto store = Open({server.endpoint()});
  const auto found = store->Find(std::vector<std::string>{"there", "gone", "there"}, Patiently());
  EXPECT_THAT(Outcomes(found), ElementsAre(Outcome::kFound, Outcome::kAbsent, Outcome::kFound));
  EXPECT_EQ(found[0].record, "record");
  EXPECT_THAT(server.Seen("HGET"),
              ElementsAre(Words{"HGET", "there", "r"}, Words{"HGET", "gone", "r"},
                          Words{"HGET", "there", "r"}));
  EXPECT_THAT(server.Seen("CLIENT"), ::testing::Contains(Words{"CLIENT", "SETNAME", "prefixd"}));
  EXPECT_FALSE(store->Status().cluster);
  EXPECT_EQ(store->Status().bytes_read, 12u);
}

TEST(FakeServerTest, ABundleOfAnotherLengthIsDataLossAndTheConnectionGoesOn) {
  Bundle bundle({5000, 6000}, 1);
  std::atomic<int> asked{0};
  FakeRedis server([&](const Words& words) -> Answer {
    if (words[0] == "CONFIG") return {"-NOPERM it is a secret\r\n"};
    if (words[0] != "HMGET") return {};
    if (asked++ == 0) return {FakeRedis::Array({bundle.stripes[0] + "x", bundle.stripes[1]})};
    return {FakeRedis::Array(bundle.stripes)};
  });
  const auto store = Open({server.endpoint()});
  AwaitSettings(*store);
  EXPECT_EQ(store->Load("b", bundle.in(), Patiently()).code(), absl::StatusCode::kDataLoss);
  const int connections = server.connections();
  EXPECT_TRUE(store->Load("b", bundle.in(), Patiently()).ok());
  EXPECT_TRUE(bundle.arrived());
  EXPECT_EQ(server.connections(), connections);
}

TEST(FakeServerTest, AMissingStripeIsNotFound) {
  Bundle bundle({10, 20}, 1);
  FakeRedis server([&](const Words& words) -> Answer {
    if (words[0] != "HMGET") return {};
    return {"*2\r\n" + FakeRedis::Bulk(bundle.stripes[0]) + "$-1\r\n"};
  });
  EXPECT_EQ(Open({server.endpoint()})->Load("b", bundle.in(), Patiently()).code(),
            absl::StatusCode::kNotFound);
}

TEST(FakeServerTest, HalfAnAnswerIsAFailureOfTheServer) {
  Bundle bundle({50'000}, 1);
  FakeRedis server([&](const Words& words) -> Answer {
    if (words[0] != "HMGET") return {};
    return {FakeRedis::Array(bundle.stripes).substr(0, 20'000), /*close=*/true};
  });
  const absl::Status status = Open({server.endpoint()})->Load("b", bundle.in(), Patiently());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("closed the connection"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(server.address()));
}

TEST(FakeServerTest, AConnectionThatTheServerClosedMeanwhileIsNotUsedAgain) {
  FakeRedis server([](const Words& words) -> Answer {
    return words[0] == "HGET" ? Answer{FakeRedis::Bulk("r"), /*close=*/true} : Answer{};
  });
  const auto store = Open({server.endpoint()});
  const std::vector<std::string> names = {"a"};
  for (int i = 0; i < 20; ++i) {
    const int closed = server.closed();
    ASSERT_THAT(Outcomes(store->Find(names, Patiently())), ElementsAre(Outcome::kFound)) << i;
    while (server.closed() == closed) std::this_thread::yield();
  }
  EXPECT_THAT(store->Status().nodes.at(0).why, IsEmpty());
}

TEST(FakeServerTest, BytesThatAreNoProtocolAreAFailureOfTheServer) {
  FakeRedis server([&](const Words& words) -> Answer {
    return words[0] == "HGET" ? Answer{"HTTP/1.1 400 Bad Request\r\n\r\n"} : Answer{};
  });
  EXPECT_THAT(Outcomes(Open({server.endpoint()})->Find(std::vector<std::string>{"a"}, Patiently())),
              ElementsAre(Outcome::kDown));
}

TEST(FakeServerTest, OtherRepliesThanWereAskedForAreNoHit) {
  FakeRedis server([&](const Words& words) -> Answer {
    if (words[0] == "HGET") return {"*1\r\n:5\r\n"};
    if (words[0] == "HMGET") return {":5\r\n"};
    if (words[0] == "GET") return {FakeRedis::Bulk("many")};
    return {};
  });
  const auto store = Open({server.endpoint()});
  Bundle bundle({10}, 1);
  EXPECT_THAT(Outcomes(store->Find(std::vector<std::string>{"a"}, Patiently())),
              ElementsAre(Outcome::kAbsent));
  EXPECT_EQ(store->Load("a", bundle.in(), Patiently()).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(store->ReadNumber("a", Patiently()).status().code(), absl::StatusCode::kDataLoss);
}

TEST(FakeServerTest, R4ASilentServerCostsTheDeadlineUntilItIsGivenUpAndNothingAfter) {
  base::FakeClock clock;
  std::atomic<bool> silent{true};
  FakeRedis server([&](const Words& words) -> Answer {
    if (silent && (words[0] == "HELLO" || words[0] == "PING"))
      return {"+"};  // the beginning of a line
    return words[0] == "HGET" && !silent ? Answer{FakeRedis::Bulk("r")} : Answer{};
  });
  silent = false;
  const auto store = Open({server.endpoint()}, &clock);
  ASSERT_TRUE(store->WaitKnown(Patiently()));
  silent = true;
  const std::vector<std::string> names = {"a"};
  for (int i = 0; i < 3; ++i) {
    const base::Deadline deadline = In(milliseconds(20));
    EXPECT_THAT(Outcomes(store->Find(names, deadline)), ElementsAre(Outcome::kLate));
    EXPECT_GE(steady_clock::now(), deadline);
  }
  EXPECT_TRUE(store->Status().nodes.at(0).open);
  EXPECT_THAT(store->Status().nodes.at(0).why, HasSubstr("no answer within"));
  // Given up, its calls return at once: a thousand of them before one deadline.
  const base::Deadline deadline = In(std::chrono::seconds(60));
  auto fastest = steady_clock::duration::max();
  for (int i = 0; i < 1000; ++i) {
    const auto begun = steady_clock::now();
    ASSERT_THAT(Outcomes(store->Find(names, deadline)), ElementsAre(Outcome::kDown));
    fastest = std::min(fastest, steady_clock::now() - begun);
  }
  EXPECT_LT(fastest, std::chrono::microseconds(100));

  silent = false;
  clock.Advance(100'000);
  FoundRecord found;
  while (found.outcome != Outcome::kFound && steady_clock::now() < deadline) {
    found = store->Find(names, deadline)[0];
  }
  EXPECT_EQ(found.record, "r");
}

TEST(FakeServerTest, AServerThatIsNotThereIsGivenUpAndIsNotWaitedFor) {
  Endpoint nobody;
  {
    FakeRedis server([](const Words&) { return Answer{}; });
    nobody = server.endpoint();
  }
  const auto store = Open({nobody});
  const std::vector<std::string> names = {"a"};
  const base::Deadline deadline = Patiently();
  EXPECT_THAT(Outcomes(store->Find(names, deadline)), ElementsAre(Outcome::kDown));
  Bundle bundle({10}, 1);
  const absl::Status status = store->Load("a", bundle.in(), deadline);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot connect"));
  EXPECT_LT(steady_clock::now(), deadline);
  EXPECT_FALSE(store->Status().known);
}

TEST(FakeServerTest, ANameThatDoesNotExistIsAServerThatIsNotThere) {
  const auto store = Open({{"no-such-host.invalid", 6379}});
  EXPECT_EQ(store->ReadNumber("a", Patiently()).status().code(), absl::StatusCode::kUnavailable);
}

// Two servers that each have half of the slots, as both say.
class TwoServersTest : public ::testing::Test {
 protected:
  Answer Common(const Words& words) {
    if (words[0] == "CLUSTER" && a_ != nullptr && b_ != nullptr) {
      return {FakeRedis::Slots({a_->endpoint(), b_->endpoint()})};
    }
    return {};
  }
  void Start(FakeRedis::Handler a, FakeRedis::Handler b) {
    // The servers answer before both are there, with a cluster that does not serve.
    auto both = [this](FakeRedis::Handler of) {
      return [this, of](const Words& words) -> Answer {
        if (words[0] == "CLUSTER") return started_ ? Common(words) : Answer{"-LOADING wait\r\n"};
        return of(words);
      };
    };
    a_ = std::make_unique<FakeRedis>(both(std::move(a)));
    b_ = std::make_unique<FakeRedis>(both(std::move(b)));
    started_ = true;
    store_ = Open({a_->endpoint(), b_->endpoint()});
    ASSERT_TRUE(store_->WaitKnown(Patiently()));
    EXPECT_TRUE(store_->Status().cluster);
  }
  static FakeRedis::Handler Says(const std::string& text) {
    return [text](const Words& words) -> Answer {
      return words[0] == "HGET" ? Answer{FakeRedis::Bulk(text)} : Answer{};
    };
  }

  std::atomic<bool> started_{false};
  std::unique_ptr<FakeRedis> a_, b_;
  std::shared_ptr<RedisStore> store_;
  const std::string first_ = NameIn(true), last_ = NameIn(false);
};

TEST_F(TwoServersTest, EachNameIsAskedOfTheServerThatHasItsSlot) {
  Start(Says("a"), Says("b"));
  const auto found = store_->Find(std::vector<std::string>{first_, last_, first_}, Patiently());
  EXPECT_EQ(found[0].record + found[1].record + found[2].record, "aba");
}

TEST_F(TwoServersTest, OneSilentServerDoesNotKeepTheOthersAnswers) {
  Start(Says("a"),
        [](const Words& words) -> Answer { return words[0] == "HGET" ? Answer{"$"} : Answer{}; });
  const auto found = store_->Find(std::vector<std::string>{first_, last_}, In(milliseconds(300)));
  EXPECT_THAT(Outcomes(found), ElementsAre(Outcome::kFound, Outcome::kLate));
}

TEST_F(TwoServersTest, AMovedSlotIsFollowedAndTheSlotsAreReadAgain) {
  Start(
      [this](const Words& words) -> Answer {
        if (words[0] != "HGET") return {};
        return {"-MOVED 5 " + b_->address() + "\r\n"};
      },
      Says("b"));
  const size_t before = a_->Count("CLUSTER") + b_->Count("CLUSTER");
  const auto found = store_->Find(std::vector<std::string>{first_, NameIn(true, 1)}, Patiently());
  EXPECT_EQ(found[0].record + found[1].record, "bb");
  EXPECT_EQ(b_->Count("ASKING"), 0u);
  const base::Deadline deadline = Patiently();
  while (a_->Count("CLUSTER") + b_->Count("CLUSTER") == before && steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_GT(a_->Count("CLUSTER") + b_->Count("CLUSTER"), before);
}

TEST_F(TwoServersTest, ASlotOnItsWayIsAskedForWithAsking) {
  Start(
      [this](const Words& words) -> Answer {
        if (words[0] != "HGET") return {};
        return {"-ASK 5 " + b_->address() + "\r\n"};
      },
      Says("b"));
  const std::vector<std::string> names = {first_, NameIn(true, 1)};
  const auto found = store_->Find(names, Patiently());
  EXPECT_EQ(found[0].record + found[1].record, "bb");
  EXPECT_EQ(b_->Count("ASKING"), 2u);
}

TEST_F(TwoServersTest, ServersThatSendACallFromOneToTheOtherEndIt) {
  Start(
      [this](const Words& words) -> Answer {
        return words[0] == "HGET" ? Answer{"-MOVED 5 " + b_->address() + "\r\n"} : Answer{};
      },
      [this](const Words& words) -> Answer {
        return words[0] == "HGET" ? Answer{"-MOVED 5 " + a_->address() + "\r\n"} : Answer{};
      });
  EXPECT_THAT(Outcomes(store_->Find(std::vector<std::string>{first_}, Patiently())),
              ElementsAre(Outcome::kDown));
  EXPECT_LE(a_->Count("HGET") + b_->Count("HGET"), 5u);
}

TEST_F(TwoServersTest, TryAgainIsTriedAgainAndClusterDownIsAMiss) {
  std::atomic<int> tries{0};
  Start(
      [&](const Words& words) -> Answer {
        if (words[0] != "HGET") return {};
        return {tries++ == 0 ? "-TRYAGAIN slot is on its way\r\n" : FakeRedis::Bulk("a")};
      },
      [](const Words& words) -> Answer {
        return words[0] == "HGET" ? Answer{"-CLUSTERDOWN The cluster is down\r\n"} : Answer{};
      });
  const auto found = store_->Find(std::vector<std::string>{first_, last_}, Patiently());
  EXPECT_THAT(Outcomes(found), ElementsAre(Outcome::kFound, Outcome::kDown));
  EXPECT_EQ(tries, 2);
  for (const NodeStatus& node : store_->Status().nodes) EXPECT_FALSE(node.open);
}

TEST(FakeServerTest, ErrorsOfTheServerAreSaidInWords) {
  std::string error;
  FakeRedis server([&](const Words& words) -> Answer {
    return words[0] == "HSET" ? Answer{"-" + error + "\r\n"} : Answer{};
  });
  const auto store = Open({server.endpoint()});
  const Bundle bundle({10}, 1);
  const auto why = [&](const char* text) {
    error = text;
    return store->Store("a", {}, bundle.out(), Patiently());
  };
  const absl::Status full = why("OOM command not allowed when used memory > 'maxmemory'.");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("maxmemory is reached"));
  EXPECT_THAT(std::string(why("NOPERM this user has no permissions").message()),
              HasSubstr("ACL does not allow"));
  EXPECT_THAT(std::string(why("READONLY You can't write").message()), HasSubstr("replica"));
  EXPECT_THAT(std::string(why("MISCONF Redis is configured to save").message()),
              HasSubstr("takes no writes"));
  EXPECT_FALSE(store->Status().nodes.at(0).open);
  EXPECT_THAT(std::string(why("NOAUTH Authentication required.").message()),
              HasSubstr("--remote-password-file"));
}

TEST(FakeServerTest, APasswordThatIsRefusedIsSaidAndAskedForFirst) {
  FakeRedis server([](const Words& words) -> Answer {
    return words[0] == "AUTH" ? Answer{"-WRONGPASS invalid username-password pair\r\n"} : Answer{};
  });
  const auto store = Open({server.endpoint()}, nullptr, "secret");
  const absl::Status status = store->ReadNumber("a", Patiently()).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("refuses user me"));
  EXPECT_EQ(std::string(status.message()).find("secret"), std::string::npos);
  EXPECT_EQ(server.Seen("AUTH").at(0), (Words{"AUTH", "me", "secret"}));
}

TEST(FakeServerTest, LimitsOfABundleAreChecked) {
  const auto store = Open({{"127.0.0.1", 1}});
  const std::vector<std::byte> large(kStripeBytes + 1), record(kMaxRecordBytes + 1);
  const std::vector<ConstRuns> stripe = {{large}}, many(kMaxStripes + 1);
  using Code = absl::StatusCode;
  EXPECT_EQ(store->Store("a", {}, stripe, Patiently()).code(), Code::kInvalidArgument);
  EXPECT_EQ(store->Store("a", {}, many, Patiently()).code(), Code::kInvalidArgument);
  EXPECT_EQ(store->Store("a", record, {}, Patiently()).code(), Code::kInvalidArgument);
}

TEST(FakeServerTest, ACallAfterItsDeadlineReturnsAtOnceAndBlamesNobody) {
  FakeRedis server([](const Words& words) -> Answer {
    return words[0] == "HGET" ? Answer{FakeRedis::Bulk("r")} : Answer{};
  });
  const auto store = Open({server.endpoint()});
  ASSERT_TRUE(store->WaitKnown(Patiently()));
  for (int i = 0; i < 10; ++i) {
    store->Find(std::vector<std::string>{"a"}, steady_clock::now() - milliseconds(1));
  }
  EXPECT_FALSE(store->Status().nodes.at(0).open);
  EXPECT_THAT(store->Status().nodes.at(0).why, IsEmpty());
}

}  // namespace
}  // namespace prefixd::remote
