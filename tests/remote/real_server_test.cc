// RedisStore on one real server: bundles, memory that is full, a server that stands still, ACL,
// TLS.
#include <sys/stat.h>

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "remote/redis_store.h"
#include "tests/remote/redis_server.h"

namespace prefixd::remote {
namespace {

using testing::Bundle;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::In;
using ::testing::IsEmpty;
using testing::Patiently;
using testing::RedisServer;
using ::testing::UnorderedElementsAreArray;
using testing::Words;
using Outcome = FoundRecord::Outcome;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

RedisOptions Options(const RedisServer& server) {
  RedisOptions options;
  options.seeds = {server.endpoint()};
  options.seed = 1;
  return options;
}
std::shared_ptr<RedisStore> Open(const RedisServer& server) {
  return RedisStore::Open(Options(server)).value();
}
std::string Name(int number) { return "pd1:{" + std::to_string(number) + "}:0"; }
Outcome Find(RedisStore& store, const std::string& name) {
  return store.Find(std::vector<std::string>{name}, Patiently())[0].outcome;
}
const Words kCache = {"--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"};

TEST(RealServerTest, WhatIsStoredIsFoundAndLoadedByAnotherStore) {
  PREFIXD_NEEDS_REDIS();
  const RedisServer server;
  const auto a = Open(server), b = Open(server);
  Bundle bundle({kStripeBytes, kStripeBytes, 1, 0, 777}, 1);
  const std::string record = testing::Pattern(300, 2);
  ASSERT_TRUE(a->Store("name", base::AsBytes(record), bundle.out(), Patiently()).ok());
  const auto found = b->Find(std::vector<std::string>{"name", "other"}, Patiently());
  EXPECT_EQ(found[0].record, record);
  EXPECT_EQ(found[1].outcome, Outcome::kAbsent);
  EXPECT_TRUE(b->Load("name", bundle.in(), Patiently()).ok());
  EXPECT_TRUE(bundle.arrived());
  Bundle shorter({kStripeBytes, 5}, 1);
  EXPECT_EQ(b->Load("name", shorter.in(), Patiently()).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(b->Load("other", shorter.in(), Patiently()).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*b->Touch(std::vector<std::string>{"name", "other"}, Patiently()),
            (std::vector<bool>{true, false}));
  EXPECT_EQ(*b->ReadNumber("number", Patiently()), 0u);
  EXPECT_EQ(*a->RaiseNumber("number", Patiently()), 1u);
  EXPECT_EQ(*b->ReadNumber("number", Patiently()), 1u);
  EXPECT_EQ(*b->RestoreNumber("number", 1, Patiently()), 1u);
  EXPECT_EQ(*b->RestoreNumber("lost", 3, Patiently()), 3u);
  EXPECT_EQ(*a->RestoreNumber("lost", 3, Patiently()), 3u);
  EXPECT_EQ(*a->RaiseNumber("lost, then raised", Patiently()), 1u);
  EXPECT_EQ(*b->RestoreNumber("lost, then raised", 3, Patiently()), 4u);
  EXPECT_EQ(a->Status().bytes_written, 300 + 2 * kStripeBytes + 778);
}

TEST(RealServerTest, ABundleLargerThanAServersShareGoesThrough) {
  PREFIXD_NEEDS_REDIS();
  const RedisServer server;
  const auto store = Open(server);
  Bundle bundle(std::vector<size_t>(40, kStripeBytes), 1);  // 10 MiB, 4 are the share
  ASSERT_TRUE(store->Store("name", {}, bundle.out(), Patiently()).ok());
  EXPECT_TRUE(store->Load("name", bundle.in(), Patiently()).ok());
  EXPECT_TRUE(bundle.arrived());
}

TEST(RealServerTest, AKeyOfSomethingElseIsNoBundle) {
  PREFIXD_NEEDS_REDIS();
  const RedisServer server;
  server.Say({"SET", "name", "text"});
  const auto store = Open(server);
  Bundle bundle({5}, 1);
  EXPECT_EQ(Find(*store, "name"), Outcome::kAbsent);
  EXPECT_EQ(store->Load("name", bundle.in(), Patiently()).code(), absl::StatusCode::kNotFound);
}

TEST(RealServerTest, ABoardIsReadByAllAndGoesWhenNobodyWritesToIt) {
  PREFIXD_NEEDS_REDIS();
  const RedisServer server;
  const auto a = Open(server), b = Open(server);
  EXPECT_THAT(*b->ReadBoard("board", Patiently()), IsEmpty());
  std::vector<Post> posts;
  for (int i = 0; i < 100; ++i) posts.push_back({std::to_string(i), "text " + std::to_string(i)});
  for (const Post& post : posts) {
    ASSERT_TRUE(
        a->WritePost("board", {post.field, "older"}, std::chrono::hours(1), Patiently()).ok());
    ASSERT_TRUE(a->WritePost("board", post, std::chrono::hours(1), Patiently()).ok());
  }
  EXPECT_THAT(*b->ReadBoard("board", Patiently()), UnorderedElementsAreArray(posts));
  EXPECT_GT(server.Say({"TTL", "board"}).integer, 3000);
  const Post large{"large", std::string(kMaxPostBytes + 1, 'x')};
  EXPECT_EQ(a->WritePost("board", large, std::chrono::hours(1), Patiently()).code(),
            absl::StatusCode::kInvalidArgument);
  server.Say({"HSET", "board", large.field, large.text});
  EXPECT_THAT(*b->ReadBoard("board", Patiently()), UnorderedElementsAreArray(posts));
  ASSERT_TRUE(a->WritePost("board", posts[0], std::chrono::seconds(0), Patiently()).ok());
  EXPECT_THAT(*b->ReadBoard("board", Patiently()), IsEmpty());
}

TEST(RealServerTest, ABoardTakesSoManyPostsAndNewTextsOfThose) {
  PREFIXD_NEEDS_REDIS();
  const RedisServer server;
  const auto store = Open(server);
  Words fill = {"HSET", "board"};
  for (size_t i = 0; i < kMaxPosts; ++i) fill.insert(fill.end(), {std::to_string(i), "text"});
  server.Say(fill);
  const auto write = [&store](const char* field) {
    return store->WritePost("board", {field, "new"}, std::chrono::hours(1), Patiently()).code();
  };
  EXPECT_EQ(write("another"), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(write("7"), absl::StatusCode::kOk);
  EXPECT_EQ(store->ReadBoard("board", Patiently())->size(), kMaxPosts);
}

TEST(RealServerTest, R4AServerThatStandsStillCostsTheDeadlineThenNothingThenServesAgain) {
  PREFIXD_NEEDS_REDIS();
  RedisServer server;
  const auto store = Open(server);
  Bundle bundle({1000}, 1);
  ASSERT_TRUE(store->Store("name", base::AsBytes("r"), bundle.out(), Patiently()).ok());
  server.Signal(SIGSTOP);
  int late = 0;
  auto longest = steady_clock::duration::zero();
  while (!store->Status().nodes.at(0).open) {
    const auto begun = steady_clock::now();
    late += store->Load("name", bundle.in(), begun + milliseconds(20)).code() ==
            absl::StatusCode::kDeadlineExceeded;
    longest = std::max(longest, steady_clock::now() - begun);
  }
  EXPECT_EQ(late, 3);
  auto fastest = longest;
  for (int i = 0; i < 1000; ++i) {
    const auto begun = steady_clock::now();
    const absl::Status status = store->Load("name", bundle.in(), begun + std::chrono::seconds(20));
    ASSERT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    fastest = std::min(fastest, steady_clock::now() - begun);
  }
  EXPECT_LT(fastest, std::chrono::microseconds(100));
  RecordProperty("longest_us", std::to_string(longest / std::chrono::microseconds(1)));
  RecordProperty("open_us", std::to_string(fastest / std::chrono::microseconds(1)));
  server.Signal(SIGCONT);
  const base::Deadline deadline = Patiently();
  while (!store->Load("name", bundle.in(), Patiently()).ok() && steady_clock::now() < deadline) {
  }
  EXPECT_TRUE(store->Load("name", bundle.in(), Patiently()).ok());
  EXPECT_TRUE(bundle.arrived());
}

TEST(RealServerTest, AServerThatWasStartedAgainServesOnNewConnections) {
  PREFIXD_NEEDS_REDIS();
  RedisServer server;
  const auto store = Open(server);
  ASSERT_EQ(*store->RaiseNumber("n", Patiently()), 1u);
  server.Kill();
  ASSERT_TRUE(server.Start());
  const base::Deadline deadline = Patiently();
  while (!store->ReadNumber("n", Patiently()).ok() && steady_clock::now() < deadline) {
  }
  EXPECT_EQ(*store->ReadNumber("n", Patiently()), 0u);
}

// What the server says it holds is compared with what was written five times over.
TEST(RealServerTest, R6BundlesOfAFullServerAreWholeOrGone) {
  PREFIXD_NEEDS_REDIS();
  const RedisServer server(kCache);
  const auto store = Open(server);
  constexpr int kBundles = 5 * 64;
  const std::vector<size_t> sizes(4, kStripeBytes);
  for (int i = 0; i < kBundles; ++i) {
    const Bundle bundle(sizes, static_cast<uint64_t>(i));
    ASSERT_TRUE(store->Store(Name(i), base::AsBytes("r"), bundle.out(), Patiently()).ok());
  }
  int whole = 0;
  for (int i = 0; i < kBundles; ++i) {
    const bool found = Find(*store, Name(i)) == Outcome::kFound;
    Bundle bundle(sizes, static_cast<uint64_t>(i));
    const absl::Status loaded = store->Load(Name(i), bundle.in(), Patiently());
    if (found) {
      ASSERT_TRUE(loaded.ok() && bundle.arrived()) << i << ": " << loaded;
      ++whole;
    } else {
      ASSERT_EQ(loaded.code(), absl::StatusCode::kNotFound);
    }
  }
  EXPECT_GT(whole, 0);
  EXPECT_LT(whole, kBundles);
  const double share = whole * 4.0 * static_cast<double>(kStripeBytes) / (64 << 20);
  std::printf("R6: %d of %d bundles whole, payload is %.3f of maxmemory\n", whole, kBundles, share);
  EXPECT_GE(share, 0.75);
}

// Buffers of the server for 8 hosts that read at the same time fit beside what it stores.
TEST(RealServerTest, R8LoadsOfManyHostsEvictNothing) {
  PREFIXD_NEEDS_REDIS();
  const RedisServer server(kCache);
  const std::vector<size_t> sizes(4, kStripeBytes);
  constexpr int kBundles = 24;  // half of the memory is free: 8 times 4 MiB
  {
    const auto store = Open(server);
    for (int i = 0; i < kBundles; ++i) {
      const Bundle bundle(sizes, static_cast<uint64_t>(i));
      ASSERT_TRUE(store->Store(Name(i), {}, bundle.out(), Patiently()).ok());
    }
  }
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  std::vector<std::shared_ptr<RedisStore>> stores;
  for (int host = 0; host < 8; ++host) stores.push_back(Open(server));
  for (int t = 0; t < 64; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 6; ++i) {
        const int number = (t + i) % kBundles;
        Bundle bundle(sizes, static_cast<uint64_t>(number));
        const bool good = stores[static_cast<size_t>(t) % 8]
                              ->Load(Name(number), bundle.in(), In(std::chrono::seconds(60)))
                              .ok();
        failed += !good || !bundle.arrived();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(server.Info("evicted_keys"), "0");
}

TEST(RealServerTest, AFullServerThatEvictsNothingSaysSo) {
  PREFIXD_NEEDS_REDIS();
  const RedisServer server({"--maxmemory", "5mb", "--maxmemory-policy", "noeviction"});
  const auto store = Open(server);
  absl::Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) {
    const Bundle bundle({kStripeBytes, kStripeBytes}, static_cast<uint64_t>(i));
    status = store->Store(Name(i), {}, bundle.out(), Patiently());
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  const base::Deadline deadline = Patiently();
  while (store->Status().warnings.empty() && steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_THAT(store->Status().warnings, Contains(HasSubstr("writes fail once the server is full")));
}

TEST(RealServerTest, UsersAndPasswordsWorkAndWhatTheyMayNotIsSaid) {
  PREFIXD_NEEDS_REDIS();
  const RedisServer server({"--requirepass", "general", "--user", "me", "on", ">mine", "~pd1:*",
                            "+@all", "-config", "-incr"});
  RedisOptions options = Options(server);
  const auto none = RedisStore::Open(options).value();
  EXPECT_THAT(std::string(none->ReadNumber("pd1:n", Patiently()).status().message()),
              HasSubstr("asks for a password"));
  options.user = "me";
  options.password = "wrong";
  const auto wrong = RedisStore::Open(options).value();
  EXPECT_THAT(std::string(wrong->ReadNumber("pd1:n", Patiently()).status().message()),
              HasSubstr("refuses user me"));
  options.password = "mine";
  const auto mine = RedisStore::Open(options).value();
  EXPECT_EQ(*mine->ReadNumber("pd1:n", Patiently()), 0u);
  EXPECT_THAT(std::string(mine->RaiseNumber("pd1:n", Patiently()).status().message()),
              HasSubstr("ACL does not allow"));
  const base::Deadline deadline = Patiently();
  while (mine->Status().warnings.empty() && steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_THAT(mine->Status().warnings, Contains(HasSubstr("cannot be checked")));
  options.user = "";
  options.password = "general";
  EXPECT_TRUE(RedisStore::Open(options).value()->ReadNumber("n", Patiently()).ok());
}

// Certificates by openssl: an authority, a server's of 127.0.0.1, another one's.
class TlsTest : public ::testing::Test {
 protected:
  bool Make() {
    const std::string script =
        "cd " + folder_.path() +
        " && openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj /CN=ca "
        "-days 2"
        " && for name in good other; do"
        " openssl req -newkey rsa:2048 -nodes -keyout $name.key -out $name.csr -subj /CN=$name;"
        " case $name in good) san=IP:127.0.0.1,DNS:localhost;; *) san=DNS:elsewhere;; esac;"
        " echo subjectAltName=$san > $name.ext;"
        " openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out $name.pem"
        " -days 2 -extfile $name.ext; done";
    return testing::Process({"/bin/sh", "-c", script}).Wait() == 0;
  }
  std::string File(const std::string& name) const { return folder_.path() + "/" + name; }
  // Null: this server program has no TLS.
  std::unique_ptr<RedisServer> Start(const std::string& certificate) {
    // One that has complains that it is given no certificate.
    testing::Process probe({testing::RedisProgram(), "--port", "0", "--tls-port", "1"});
    probe.Wait();
    if (probe.out().find("configure TLS") == std::string::npos) return nullptr;
    Login login;
    login.tls = TlsContext::Make({.ca_file = File("ca.pem"),
                                  .cert_file = File("good.pem"),
                                  .key_file = File("good.key")})
                    .value();
    Words arguments = {"--tls-cert-file",          File(certificate + ".pem"), "--tls-key-file",
                       File(certificate + ".key"), "--tls-ca-cert-file",       File("ca.pem")};
    return std::make_unique<RedisServer>(std::move(arguments), std::move(login));
  }
  RedisOptions WithTls(const RedisServer& server) const {
    RedisOptions options = Options(server);
    options.tls = true;
    options.ca_file = File("ca.pem");
    options.cert_file = File("good.pem");
    options.key_file = File("good.key");
    return options;
  }
  const testing::TempFolder folder_;
};

TEST_F(TlsTest, BundlesTravelByTlsAndWhoIsNotTrustedIsRefusedInWords) {
  PREFIXD_NEEDS_REDIS();
  ASSERT_TRUE(Make()) << "the program openssl is missing";
  const auto server = Start("good");
  if (server == nullptr) GTEST_SKIP() << testing::RedisProgram() << " has no TLS";
  const auto store = RedisStore::Open(WithTls(*server)).value();
  Bundle bundle(std::vector<size_t>(9, kStripeBytes), 1);
  ASSERT_TRUE(store->Store("name", base::AsBytes("r"), bundle.out(), Patiently()).ok())
      << store->ReadNumber("n", Patiently()).status();
  EXPECT_TRUE(store->Load("name", bundle.in(), Patiently()).ok());
  EXPECT_TRUE(bundle.arrived());
  EXPECT_EQ(Find(*store, "name"), Outcome::kFound);
  EXPECT_TRUE(store->Status().tls);

  RedisOptions stranger = WithTls(*server);
  stranger.ca_file.clear();
  EXPECT_THAT(
      std::string(
          RedisStore::Open(stranger).value()->ReadNumber("n", Patiently()).status().message()),
      HasSubstr("certificate is refused"));
  RedisOptions anonymous = WithTls(*server);
  anonymous.cert_file.clear();
  anonymous.key_file.clear();
  EXPECT_FALSE(RedisStore::Open(anonymous).value()->ReadNumber("n", Patiently()).ok());
  RedisOptions plain = Options(*server);
  EXPECT_FALSE(RedisStore::Open(plain).value()->ReadNumber("n", Patiently()).ok());
}

TEST_F(TlsTest, ACertificateOfAnotherHostIsRefused) {
  PREFIXD_NEEDS_REDIS();
  ASSERT_TRUE(Make()) << "the program openssl is missing";
  // The test itself cannot ask this one whether it is there.
  const auto good = Start("good");
  if (good == nullptr) GTEST_SKIP() << testing::RedisProgram() << " has no TLS";
  ASSERT_EQ(good->Say({"CONFIG", "SET", "tls-cert-file", File("other.pem"), "tls-key-file",
                       File("other.key")})
                .text,
            "OK");
  EXPECT_THAT(std::string(RedisStore::Open(WithTls(*good))
                              .value()
                              ->ReadNumber("n", Patiently())
                              .status()
                              .message()),
              HasSubstr("mismatch"));
}

TEST_F(TlsTest, FilesThatCannotBeUsedAreNamedAtOnce) {
  RedisOptions options;
  options.seeds = {{"127.0.0.1", 1}};
  options.tls = true;
  options.ca_file = File("nothing.pem");
  const absl::Status status = RedisStore::Open(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("nothing.pem"));
}

}  // namespace
}  // namespace prefixd::remote
