// Without a daemon, with a daemon that comes and goes, and with calls that make no sense: no throw,
// no wait beyond the deadline, a private KV cache all the same.
#include <stdio.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "prefixd/attention.h"
#include "tests/client/daemon.h"

namespace prefixd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

const KvFormat kFormat = MlxAffine(8, 64, Dtype::kF16);

void ExpectPrivateCacheWorks(const std::string& address) {
  SCOPED_TRACE(address);
  const SpaceSpec spec = SmallSpace(kFormat);
  Client client({.address = address});
  Result<Space> space = client.OpenSpace(spec);
  ASSERT_TRUE(space.ok()) << space.status.message;
  const std::vector<uint32_t> tokens = Tokens(100, 1);
  const auto asked = steady_clock::now();
  Sequence seq = space.value().Begin(tokens, {.deadline = milliseconds(60'000)});
  EXPECT_LT(steady_clock::now() - asked, milliseconds(5'000)) << "not attached: at once";
  EXPECT_EQ(seq.restorable_tokens(), 0u);
  EXPECT_EQ(seq.match().status.code, StatusCode::kUnavailable) << seq.match().status.message;
  EXPECT_EQ(seq.WaitAll(), 0u);
  AppendTokens(seq, spec, tokens, 0, 100);
  EXPECT_EQ(seq.block_table(1).size(), 2u);
  EXPECT_EQ(seq.block_table(1)[1].tokens, 36u);
  EXPECT_EQ(seq.Commit({.sequence_end = true}).status.code, StatusCode::kUnavailable);
  EXPECT_FALSE(client.attached());
}

TEST(FailOpenTest, WithoutADaemonASequenceIsAPrivateCache) {
  const TempDirectory directory;
  ExpectPrivateCacheWorks(directory.address());
}

TEST(FailOpenTest, APortWhereNobodyListensIsADaemonThatIsNotThere) {
  ExpectPrivateCacheWorks("127.0.0.1:1");
}

TEST(FailOpenTest, AnAddressThatIsNoneIsRefusedWithWhatMayHaveBeenMeant) {
  const struct {
    const char *address, *meant;
  } cases[] = {{"", "unix:///run/prefixd/prefixd.sock?"},
               {"unix://", "unix:///run/prefixd/prefixd.sock?"},
               {"x.sock", "unix:x.sock?"},
               {"/run/x.sock", "unix:///run/x.sock?"},
               {"http://x", "unix:///run/prefixd/prefixd.sock or 127.0.0.1:7777?"},
               {"localhost", "localhost:7777?"},
               {"localhost:99999", "localhost:99999:7777?"}};
  for (const auto& [address, meant] : cases) {
    Client client({.address = address});
    const auto asked = steady_clock::now();
    const Result<Space> space = client.OpenSpace(SmallSpace(kFormat));
    EXPECT_EQ(space.status.code, StatusCode::kInvalidArgument) << address;
    EXPECT_NE(space.status.message.find(std::string("did you mean ") + meant), std::string::npos)
        << space.status.message;
    EXPECT_EQ(client.arena().why_not, space.status.message);
    EXPECT_FALSE(client.WaitAttached(milliseconds(10'000)));
    EXPECT_LT(steady_clock::now() - asked, milliseconds(5'000)) << "nothing to wait for";
  }
}

TEST(FailOpenTest, WhyThereIsNoDaemonTellsAbsentFromSilentFromForbidden) {
  const TempDirectory directory;
  const auto why = [&] {
    Client client({.address = directory.address()});
    client.WaitAttached(milliseconds(100));
    return client.arena().why_not;
  };
  EXPECT_EQ(why(), "client: no daemon at " + directory.address());
  sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
  directory.socket().copy(name.sun_path, sizeof(name.sun_path) - 1);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  EXPECT_EQ(why(),
            "client: no daemon at " + directory.address() + ": nobody listens on its socket");
  ::chmod(directory.socket().c_str(), 0100);
  ::chmod(std::filesystem::path(directory.socket()).parent_path().c_str(), 0755);
  const int user = ::setfsuid(65534);  // root may open every socket
  const std::string forbidden = why();
  ::setfsuid(static_cast<uid_t>(user));
  ::close(socket);
  EXPECT_NE(forbidden.find("permission denied on socket " + directory.socket() + ", 0100 "),
            std::string::npos)
      << forbidden;
  EXPECT_NE(forbidden.find("; join its group"), std::string::npos) << forbidden;
}

TEST(FailOpenTest, AClientAttachesWhenTheDaemonComesAndAgainWhenItComesBack) {
  const TempDirectory directory;
  const SpaceSpec spec = SmallSpace(kFormat);
  Client client({.address = directory.address()});
  Result<Space> space = client.OpenSpace(spec);
  ASSERT_TRUE(space.ok());
  const std::vector<uint32_t> tokens = Tokens(200, 1);
  Sequence seq = space.value().Begin(tokens);

  auto daemon = std::make_unique<Daemon>(directory.socket());
  ASSERT_TRUE(client.WaitAttached(milliseconds(20'000)));
  AppendTokens(seq, spec, tokens, 0, 200);
  ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok()) << "begun without it, stored all the same";
  EXPECT_EQ(daemon->space().stored_tokens, 200u);
  Sequence warm = space.value().Begin(tokens);
  ASSERT_EQ(warm.WaitAll(), 200u);

  daemon.reset();  // everything is lost with it: it has no SSD
  std::vector<uint32_t> longer = tokens;
  longer.push_back(9);
  warm.PushToken(9);
  AppendTokens(warm, spec, longer, 200, 201);  // what was loaded stays
  EXPECT_EQ(GatherAll(warm, spec, 200), GatherAll(seq, spec, 200));
  EXPECT_FALSE(warm.Commit({.sequence_end = true}).ok());

  daemon = std::make_unique<Daemon>(directory.socket());
  Result<CommitInfo> stored;
  for (const auto end = steady_clock::now() + milliseconds(20'000); steady_clock::now() < end;) {
    ASSERT_TRUE(
        client.WaitAttached(milliseconds(20'000)));  // true at first: the loss is not known yet
    seq = space.value().Begin(tokens);
    AppendTokens(seq, spec, tokens, seq.WaitAll(), 200);
    stored = seq.Commit({.sequence_end = true});
    if (stored.ok()) break;
  }
  ASSERT_TRUE(stored.ok()) << stored.status.message;
  EXPECT_EQ(daemon->space().stored_tokens, 200u) << "the space was opened again";
  EXPECT_EQ(space.value().Begin(tokens).WaitAll(), 200u);
}

TEST(ArgumentsTest, ImpossibleSpacesAreRefusedBeforeAnyDaemon) {
  const TempDirectory directory;
  Client client({.address = directory.address()});
  SpaceSpec spec = SmallSpace(MlxAffine(8, 48, Dtype::kF16));
  Result<Space> refused = client.OpenSpace(spec);
  EXPECT_EQ(refused.status.code, StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status.message.find("48"), std::string::npos) << refused.status.message;
  spec.layers.clear();
  EXPECT_EQ(client.OpenSpace(spec).status.code, StatusCode::kInvalidArgument);
}

TEST(ArgumentsTest, TheDaemonsOwnSentenceComesThrough) {
  const TempDirectory directory;
  Daemon daemon(directory.socket());
  Client client({.address = directory.address()});
  SpaceSpec spec = SmallSpace(kFormat);
  spec.weights_digest = {};
  const Result<Space> refused = client.OpenSpace(spec);
  ASSERT_FALSE(refused.ok()) << "a space opened by name alone";
  EXPECT_NE(refused.status.message.find("trust"), std::string::npos) << refused.status.message;
}

TEST(ArgumentsTest, CallsThatMakeNoSenseSaySoAndChangeNothing) {
  const TempDirectory directory;
  Daemon daemon(directory.socket());
  Client client({.address = directory.address()});
  const SpaceSpec spec = SmallSpace(kFormat);
  Result<Space> space = client.OpenSpace(spec);
  const std::vector<uint32_t> tokens = Tokens(100, 1);
  {
    Sequence seq = space.value().Begin(tokens);
    AppendTokens(seq, spec, tokens, 0, 100);
    ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
    EXPECT_TRUE(seq.Commit({.sequence_end = true}).ok()) << "nothing new is no error";
  }
  Sequence seq = space.value().Begin(tokens, {.max_cached_tokens = 99});
  ASSERT_EQ(seq.WaitAll(), 99u);
  const std::vector<float> row(1024);
  const TensorView view{.data = row.data()};
  EXPECT_EQ(seq.Append(0, 98, 1, view, view).code, StatusCode::kInvalidArgument) << "back";
  EXPECT_EQ(seq.Append(0, 99, 2, view, view).code, StatusCode::kInvalidArgument) << "unannounced";
  EXPECT_EQ(seq.Append(0, ~0u, 2, view, view).code, StatusCode::kInvalidArgument);
  EXPECT_EQ(seq.Append(3, 99, 1, view, view).code, StatusCode::kInvalidArgument) << "no such layer";
  EXPECT_EQ(seq.Append(-1, 99, 1, view, view).code, StatusCode::kInvalidArgument);
  EXPECT_EQ(seq.Append(0, 99, 1, {}, view).code, StatusCode::kInvalidArgument) << "no data";
  seq.PushToken(1);
  EXPECT_EQ(seq.Append(0, 100, 1, view, view).code, StatusCode::kInvalidArgument) << "gap";
  Packed out(kFormat.key, 2, 64, 100);
  EXPECT_EQ(seq.Gather(0, 0, 100, out.view(), out.view()).code, StatusCode::kInvalidArgument);
  EXPECT_EQ(seq.Gather(0, 0, 99, {}, {}).code, StatusCode::kInvalidArgument);
  EXPECT_EQ(seq.block_table(0).size(), 2u);
  EXPECT_EQ(seq.block_table(7).size(), 0u);
  EXPECT_EQ(space.value().Begin({}).restorable_tokens(), 0u);
  EXPECT_EQ(space.value().Begin(tokens, {.max_cached_tokens = 0}).restorable_tokens(), 0u);

  Sequence empty;
  EXPECT_EQ(empty.WaitAll() + empty.Restart() + empty.restorable_tokens(), 0u);
  EXPECT_EQ(empty.Append(0, 0, 1, view, view).code, StatusCode::kFailedPrecondition);
  EXPECT_FALSE(empty.Commit().ok());
  empty.Release();
  EXPECT_EQ(Attend({}, {}, nullptr, nullptr, {}).code, StatusCode::kInvalidArgument);
}

TEST(StatsTest, ReleaseSaysWhatTheLeaseWasWorth) {
  const TempDirectory directory;
  Daemon daemon(directory.socket());
  const SpaceSpec spec = SmallSpace(kFormat);
  const std::vector<uint32_t> tokens = Tokens(100, 1);
  {
    Client client({.address = directory.address()});
    Result<Space> space = client.OpenSpace(spec);
    Sequence seq = space.value().Begin(tokens);
    AppendTokens(seq, spec, tokens, 0, 100);
    ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
    Sequence warm = space.value().Begin(tokens);
    ASSERT_EQ(warm.WaitAll(), 100u);
    warm.Release({.used_tokens = 90, .prefill_tokens_per_s = 100});
  }  // ~Client waits for what is on its way
  uint64_t used = 0;
  for (const block::NamedCount& count : daemon.cache().GetStats().counters) {
    if (count.name == "tokens.used") used = count.value;
  }
  EXPECT_EQ(used, 90u);
  EXPECT_EQ(daemon.cache().GetStats().leases, 0u);
}

// Runs the example as a process of its own. Returns its one line.
std::string RunExample(const std::string& address) {
  const std::string command = std::string(PREFIXD_BINARY_DIR "/example_worker ") + address;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "";
  char line[256] = "";
  if (fgets(line, sizeof(line), pipe) == nullptr) line[0] = 0;
  EXPECT_EQ(pclose(pipe), 0);
  return line;
}

std::string ChecksumOf(const std::string& line) {
  const size_t at = line.find("checksum ");
  return at == std::string::npos ? "" : line.substr(at + 9, 8);
}

TEST(ExampleTest, SaysTheSameColdWarmAndWithoutADaemon) {
  const TempDirectory directory;
  const std::string alone = RunExample(directory.address());
  EXPECT_EQ(alone.find("cached 0 "), 0u) << alone;
  Daemon daemon(directory.socket());
  const std::string cold = RunExample(directory.address());
  EXPECT_EQ(cold.find("cached 0 "), 0u) << cold;
  EXPECT_NE(cold.find("stored"), std::string::npos) << cold;
  EXPECT_EQ(daemon.space().ends, 2u) << "the prompt's and the answer's";
  const std::string warm = RunExample(directory.address());
  EXPECT_EQ(warm.find("cached 299 "), 0u) << warm;
  EXPECT_EQ(ChecksumOf(alone), ChecksumOf(cold));
  EXPECT_EQ(ChecksumOf(cold), ChecksumOf(warm));
  EXPECT_EQ(ChecksumOf(warm).size(), 8u);
}

}  // namespace
}  // namespace prefixd
