// A5: bad input of every kind ends in a clear error or a shorter match, a counter, and a daemon
// that lives (TearDown stores and reads after each test).
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "grpcpp/generic/generic_stub.h"

#include "tests/daemon/fixture.h"
#include "wire/limits.h"

namespace prefixd::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

class BadInputTest : public DaemonTest {
 protected:
  // `status` is an error of this kind, says this, and was counted.
  void ExpectRefused(const grpc::Status& status, StatusCode code, const std::string& says) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(says));
    const char* counter =
        code == StatusCode::NOT_FOUND ? "refused.not_found" : "refused.bad_request";
    EXPECT_GE(worker_->Counter(counter), ++refused_[counter]);
  }
  std::vector<v1::PutChunk> GoodPut(const Tokens& tokens) {
    v1::ReserveReply plan;
    EXPECT_TRUE(worker_->Reserve(space_, tokens, &plan).ok());
    return worker_->ChunksOf(identity_, tokens, plan, true);
  }
  bool NothingReserved() {
    return Eventually([](const v1::GetStatsReply& stats) { return stats.reservations() == 0; });
  }
  uint32_t Matched(const Tokens& tokens) {
    v1::AcquireReply reply;
    EXPECT_TRUE(worker_->Acquire(space_, tokens, &reply).ok());
    return reply.answers_size() == 1 ? reply.answers(0).matched_tokens() : ~0u;
  }

  std::map<std::string, uint64_t> refused_;
};

TEST_F(BadInputTest, EmptyAndOversizedTokenListsAreRefused) {
  v1::AcquireReply reply;
  ExpectRefused(worker_->Acquire(space_, {}, &reply), StatusCode::INVALID_ARGUMENT, "0 tokens");
  ExpectRefused(worker_->Acquire(space_, Tokens((1u << 21) + 1), &reply),
                StatusCode::INVALID_ARGUMENT, "2097153 entries, at most 2097152");
  v1::ReserveReply plan;
  ExpectRefused(worker_->Reserve(space_, {}, &plan), StatusCode::INVALID_ARGUMENT, "0 tokens");
  EXPECT_TRUE(worker_->Acquire(space_, Tokens(1u << 21), &reply).ok());
}

TEST_F(BadInputTest, MessagesAboveTheirLimitAreRefused) {
  v1::AcquireReply reply;
  EXPECT_EQ(worker_->Acquire(space_, Tokens(5u << 20), &reply).error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
  block::SpaceIdentity identity = identity_;
  identity.salt = std::string(3u << 20, 's');
  v1::OpenSpaceReply opened;
  ExpectRefused(worker_->OpenSpace(identity, &opened), StatusCode::INVALID_ARGUMENT,
                "OpenSpaceRequest");
}

TEST_F(BadInputTest, UnknownIdsAreNotFound) {
  v1::AcquireReply acquired;
  ExpectRefused(worker_->Acquire(space_ + 99, SomeTokens(1, 10), &acquired), StatusCode::NOT_FOUND,
                "space");
  v1::ReserveReply plan;
  ExpectRefused(worker_->Reserve(space_ + 99, SomeTokens(1, 10), &plan), StatusCode::NOT_FOUND,
                "space");
  Pages pages;
  std::vector<v1::GroupReady> ready;
  ExpectRefused(worker_->Fetch(777, &pages, &ready), StatusCode::NOT_FOUND, "lease");
  v1::ReleaseRequest release;
  release.set_session(worker_->session);
  release.add_release()->set_lease(777);
  v1::Ack ack;
  Context context;
  ExpectRefused(worker_->cache->Release(&context, release, &ack), StatusCode::NOT_FOUND, "lease");
  v1::CommitRequest commit;
  commit.set_session(worker_->session);
  commit.set_reservation(777);
  commit.set_tokens(16);
  v1::CommitReply committed;
  Context commit_context;
  ExpectRefused(worker_->cache->Commit(&commit_context, commit, &committed), StatusCode::NOT_FOUND,
                "reservation");
  Worker stranger(target());
  stranger.session = 4711;
  v1::OpenSpaceReply opened;
  ExpectRefused(stranger.OpenSpace(identity_, &opened), StatusCode::NOT_FOUND, "session");
}

TEST_F(BadInputTest, AnotherSessionsLeaseIsNotFound) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  v1::AcquireReply reply;
  ASSERT_TRUE(worker_->Acquire(space_, SomeTokens(1, 40), &reply).ok());
  Worker other(target());
  other.Attach();
  Pages pages;
  std::vector<v1::GroupReady> ready;
  ExpectRefused(other.Fetch(reply.answers(0).lease(), &pages, &ready), StatusCode::NOT_FOUND,
                "lease");
}

TEST_F(BadInputTest, AnItemThatIsBadLeasesNothing) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  v1::AcquireRequest request = worker_->AcquireOf(space_, SomeTokens(1, 40));
  *request.add_items() = request.items(0);
  request.mutable_items(1)->mutable_sequence()->set_space(space_ + 99);
  v1::AcquireReply reply;
  Context context;
  ExpectRefused(worker_->cache->Acquire(&context, request, &reply), StatusCode::NOT_FOUND, "space");
  EXPECT_EQ(worker_->Stats().leases(), 0u);
}

TEST_F(BadInputTest, PayloadWithoutAReservationIsNotFound) {
  const Tokens tokens = SomeTokens(1, 16);
  std::vector<v1::PutChunk> chunks = GoodPut(tokens);
  chunks[0].mutable_header()->set_reservation(4711);
  v1::CommitReply reply;
  ExpectRefused(worker_->Put(chunks, &reply), StatusCode::NOT_FOUND, "reservation");
  EXPECT_EQ(Matched(tokens), 0u);
}

TEST_F(BadInputTest, AStreamWithoutAHeaderIsRefused) {
  std::vector<v1::PutChunk> chunks = GoodPut(SomeTokens(1, 16));
  v1::CommitReply reply;
  ExpectRefused(worker_->Put({chunks[1]}, &reply), StatusCode::INVALID_ARGUMENT, "not the header");
  ExpectRefused(worker_->Put({chunks[0], chunks[0]}, &reply), StatusCode::INVALID_ARGUMENT,
                "message 1 is not a page");
  chunks = GoodPut(SomeTokens(2, 16));
  ExpectRefused(worker_->Put({chunks[0], v1::PutChunk()}, &reply), StatusCode::INVALID_ARGUMENT,
                "message 1 is not a page");
}

TEST_F(BadInputTest, PagesOfWrongSizeOrPlaceOrSumAreRefusedAndEndTheReservation) {
  using Spoil = void (*)(v1::PageBytes*);
  const Spoil spoils[] = {
      [](v1::PageBytes* page) { page->set_page_bytes(page->page_bytes() + 128); },
      [](v1::PageBytes* page) { page->set_tokens(page->tokens() + 1); },
      [](v1::PageBytes* page) { page->set_group(9); },
      [](v1::PageBytes* page) { page->set_rung(3); },
      [](v1::PageBytes* page) { page->set_first_token(page->first_token() + 1); },
      [](v1::PageBytes* page) { page->set_offset(128); },
      [](v1::PageBytes* page) { page->set_offset(std::numeric_limits<uint64_t>::max() - 7); },
      [](v1::PageBytes* page) { page->set_xxh3(page->xxh3() + 1); },
      [](v1::PageBytes* page) { page->clear_data(); },
      [](v1::PageBytes* page) { page->set_data(std::string((1u << 20) + 1, 'x')); },
  };
  const Tokens tokens = SomeTokens(1, 16);
  for (const Spoil spoil : spoils) {
    std::vector<v1::PutChunk> chunks = GoodPut(tokens);
    spoil(chunks[1].mutable_page());
    v1::CommitReply reply;
    ExpectRefused(worker_->Put(chunks, &reply), StatusCode::INVALID_ARGUMENT, "");
    EXPECT_TRUE(NothingReserved());
    EXPECT_EQ(Matched(tokens), 0u);
  }
}

TEST_F(BadInputTest, AStreamThatLacksAPageStoresTheBlocksBeforeItAndSaysSo) {
  const Tokens tokens = SomeTokens(1, 32);
  std::vector<v1::PutChunk> chunks = GoodPut(tokens);
  chunks.pop_back();
  v1::CommitReply reply;
  ASSERT_TRUE(worker_->Put(chunks, &reply).ok());
  EXPECT_EQ(reply.stored_tokens(), 16u);
  ASSERT_EQ(reply.blocks_size(), 2);
  EXPECT_EQ(reply.blocks(1).result(), v1::STORE_RESULT_REFUSED);
  EXPECT_NE(reply.blocks(1).reason(), "");
  EXPECT_TRUE(NothingReserved());
  EXPECT_EQ(Matched(tokens), 16u);
}

TEST_F(BadInputTest, APageCutShortIsNotPublished) {
  const Tokens tokens = SomeTokens(1, 16);
  std::vector<v1::PutChunk> chunks = GoodPut(tokens);
  v1::PageBytes* last = chunks.back().mutable_page();
  last->mutable_data()->resize(last->data().size() / 2);
  last->set_xxh3(base::Xxh3(base::AsBytes(last->data())));
  v1::CommitReply reply;
  worker_->Put(chunks, &reply);
  EXPECT_EQ(reply.stored_tokens(), 0u);
  EXPECT_TRUE(NothingReserved());
  EXPECT_EQ(Matched(tokens), 0u);
}

TEST_F(BadInputTest, AClientKilledMidPutLeavesNothing) {
  const Tokens tokens = SomeTokens(1, 32);
  {
    Worker victim(target());
    victim.Attach();
    victim.Open(identity_);
    v1::ReserveReply plan;
    ASSERT_TRUE(victim.Reserve(space_, tokens, &plan).ok());
    const std::vector<v1::PutChunk> chunks = victim.ChunksOf(identity_, tokens, plan, true);
    Context context;
    v1::CommitReply reply;
    auto writer = victim.cache->Put(&context, &reply);
    ASSERT_TRUE(writer->Write(chunks[0]));
    ASSERT_TRUE(writer->Write(chunks[1]));
    EXPECT_EQ(worker_->Stats().reservations(), 1u);
    // In the middle: the daemon has taken the first page's bytes.
    EXPECT_TRUE(Eventually(
        [this](const v1::GetStatsReply&) { return worker_->Counter("arena.extent_bytes") > 0; }));
    context.TryCancel();
    EXPECT_FALSE(writer->Finish().ok());
  }
  EXPECT_TRUE(Eventually([](const v1::GetStatsReply& stats) {
    return stats.reservations() == 0 && stats.sessions() == 1;
  }));
  EXPECT_EQ(Matched(tokens), 0u);
  EXPECT_TRUE(Eventually(
      [this](const v1::GetStatsReply&) { return worker_->Counter("refused.cancelled") > 0; }));
}

// NaN is bytes: the cache keeps what the worker computed and never reads it as numbers. Whoever
// stores NaN gets NaN back.
TEST_F(BadInputTest, PayloadOfNanIsStoredAsItIs) {
  const Tokens tokens = SomeTokens(1, 16);
  std::vector<v1::PutChunk> chunks = GoodPut(tokens);
  for (size_t i = 1; i < chunks.size(); ++i) {
    v1::PageBytes* page = chunks[i].mutable_page();
    page->mutable_data()->assign(page->data().size(), '\xff');  // every f16 a NaN
    page->set_xxh3(base::Xxh3(base::AsBytes(page->data())));
  }
  v1::CommitReply reply;
  ASSERT_TRUE(worker_->Put(chunks, &reply).ok());
  v1::AcquireReply acquired;
  ASSERT_TRUE(worker_->Acquire(space_, tokens, &acquired).ok());
  Pages pages;
  std::vector<v1::GroupReady> ready;
  ASSERT_TRUE(worker_->Fetch(acquired.answers(0).lease(), &pages, &ready).ok());
  ASSERT_EQ(pages.size(), 2u);
  EXPECT_EQ((pages[{0, 0}]), chunks[1].page().data());
}

TEST_F(BadInputTest, AnIdentityThatCannotBeIsRefusedByName) {
  block::SpaceIdentity identity = identity_;
  identity.groups[1].ladder[0].key.group_size = 48;
  v1::OpenSpaceReply reply;
  ExpectRefused(worker_->OpenSpace(identity, &reply), StatusCode::INVALID_ARGUMENT,
                "): keys: group_size of mlx_affine 48");
  identity = identity_;
  identity.weights_digest = {};
  ExpectRefused(worker_->OpenSpace(identity, &reply), StatusCode::INVALID_ARGUMENT, "weights");
}

TEST_F(BadInputTest, AnAttachOfAnotherProtocolIsRefused) {
  v1::AttachRequest request;
  request.set_protocol(2);
  Context context;
  ExpectRefused(worker_->cache->Attach(&context, request)->Finish(), StatusCode::INVALID_ARGUMENT,
                "protocol is 2");
}

TEST_F(BadInputTest, SpaceIdsThatAreNoneAreRefused) {
  v1::ClearRequest request;
  request.set_space_id("abc");
  v1::ClearReply reply;
  Context context;
  ExpectRefused(worker_->admin->Clear(&context, request, &reply), StatusCode::INVALID_ARGUMENT,
                "space_id has 3 bytes");
  request.set_space_id(std::string(32, 'x'));
  Context again;
  ExpectRefused(worker_->admin->Clear(&again, request, &reply), StatusCode::NOT_FOUND, "space");
}

int Connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

TEST_F(BadInputTest, GarbageOnTheSocketOnlyClosesThatConnection) {
  for (const std::string& hello : {std::string(), std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
                                   std::string("GET / HTTP/1.1\r\n\r\n")}) {
    const int fd = Connect(dir_.path() + "/s");
    std::string garbage = hello;
    for (uint64_t i = 0; i < 8192; ++i) garbage.push_back(static_cast<char>(Mix(i)));
    ::send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL);
    ::shutdown(fd, SHUT_WR);
    char buffer[4096];
    while (::recv(fd, buffer, sizeof(buffer), 0) > 0) {
    }
    ::close(fd);
    EXPECT_EQ(worker_->Stats().sessions(), 1u);
  }
}

// A unary call whose message is `bytes`, as they are.
grpc::Status CallRaw(const std::string& target, const std::string& method, const std::string& bytes,
                     grpc_compression_algorithm compression = GRPC_COMPRESS_NONE) {
  grpc::GenericStub stub(Worker::Channel(target));
  grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer reply;
  Context context;
  context.set_compression_algorithm(compression);
  grpc::CompletionQueue queue;
  auto call = stub.PrepareUnaryCall(&context, "/prefixd.v1." + method, request, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  EXPECT_TRUE(queue.Next(&tag, &ok));
  return status;
}

const char* const kUnaryVerbs[] = {"OpenSpace", "NotShared", "Match",   "Acquire",
                                   "Prefetch",  "Release",   "Reserve", "Commit",
                                   "Abandon",   "Pin",       "Unpin"};

TEST_F(BadInputTest, AMessageThatIsNoProtobufIsAnError) {
  for (const char* verb : kUnaryVerbs) {
    ExpectRefused(CallRaw(target(), std::string("PrefixCache/") + verb, "\xff\xff\xff garbage"),
                  StatusCode::INVALID_ARGUMENT, "the request is no ");
  }
}

// T3: such a message is held several times over while it is served.
class LittleRamTest : public DaemonTest {
 protected:
  LittleRamTest() { token_message_bytes_ = wire::TokenMessageBytes(uint64_t{256} << 20); }
};

TEST_F(LittleRamTest, T3MessagesWithTokensAreShorterWhereTheBudgetIsSmall) {
  v1::GetConfigReply config;
  Context context;
  ASSERT_TRUE(worker_->admin->GetConfig(&context, {}, &config).ok());
  const auto said = std::ranges::find(config.limits(), "token_message_bytes",
                                      [](const auto& limit) { return limit.name(); });
  ASSERT_NE(said, config.limits().end());
  EXPECT_EQ(said->value(), std::to_string(2u << 20));
  v1::AcquireReply reply;
  EXPECT_TRUE(worker_->Acquire(space_, Tokens(500'000), &reply).ok());
  EXPECT_EQ(worker_->Acquire(space_, Tokens(530'000), &reply).error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
}

TEST(TokenMessageTest, OneWholeSequenceFitsWhereTheBudgetIsNotSmall) {
  EXPECT_EQ(wire::TokenMessageBytes(uint64_t{64} << 20), 2u << 20);
  EXPECT_EQ(wire::TokenMessageBytes(uint64_t{512} << 20), 4u << 20);
  EXPECT_EQ(wire::TokenMessageBytes(uint64_t{64} << 30), 9u << 20);
  EXPECT_GT(wire::TokenMessageBytes(uint64_t{2} << 30), wire::kMaxTokens * sizeof(uint32_t));
}

// A few bytes of a message can be a hundred times as many in memory: nobody parses such a one.
TEST_F(BadInputTest, T3AMessageThatWouldUnfoldToTooMuchIsRefusedUnparsed) {
  const auto repeat = [](const std::string& piece, size_t bytes) {
    std::string text;
    while (text.size() < bytes) text += piece;
    return text;
  };
  const struct {
    const char* method;
    std::string message;
  } messages[] = {
      {"PrefixCache/Acquire", repeat(std::string("\x12\0", 2), 4 << 20)},  // empty items
      {"PrefixCache/Match", repeat(std::string("\x12\0", 2), 4 << 20)},
      {"PrefixCache/Prefetch", repeat(std::string("\x1a\0", 2), 4 << 20)},  // empty releases
      {"PrefixCache/Release", repeat(std::string("\x12\0", 2), 2 << 20)},
      {"PrefixCache/Commit", repeat(std::string("\x32\0", 2), 2 << 20)},
      {"PrefixCache/Abandon", repeat(std::string("\x78\1", 2), 2 << 20)},  // fields nobody knows
  };
  for (const auto& [method, message] : messages) {
    SCOPED_TRACE(method);
    ExpectRefused(CallRaw(target(), method, message), StatusCode::INVALID_ARGUMENT,
                  "takes more than 10485760 bytes of memory");
  }
  // Messages of Admin are short, where workers connect and on its own socket.
  const std::string unknown = repeat(std::string("\x78\1", 2), 256 << 10);
  for (const std::string& where : {target(), Worker::AdminOf(target())}) {
    for (const char* method : {"Admin/GetStats", "Admin/GetConfig"}) {
      SCOPED_TRACE(where + " " + method);
      ExpectRefused(CallRaw(where, method, unknown), StatusCode::INVALID_ARGUMENT,
                    "takes more than 1048576 bytes of memory");
      ExpectRefused(CallRaw(where, method, unknown + unknown), StatusCode::INVALID_ARGUMENT,
                    "524288 bytes, at most 262144 of such a message");
    }
  }
  v1::AcquireRequest set = worker_->AcquireOf(space_, Tokens(1u << 21));
  set.mutable_items(0)->set_set(1);
  for (int i = 0; i < 15; ++i) {  // each has the tokens of the one before it
    set.add_items()->set_set(1);
    set.mutable_items(i + 1)->mutable_sequence()->set_space(space_);
  }
  Context context;
  v1::AcquireReply reply;
  ExpectRefused(worker_->cache->Match(&context, set, &reply), StatusCode::INVALID_ARGUMENT,
                "the tokens and content of its items take more than");
}

// gRPC would unpack it whole, whatever size that is.
TEST_F(BadInputTest, T3ACompressedMessageIsRefused) {
  const grpc::Status status =
      CallRaw(target(), "PrefixCache/Match", std::string(1 << 20, '\0'), GRPC_COMPRESS_GZIP);
  EXPECT_EQ(status.error_code(), StatusCode::UNIMPLEMENTED) << status.error_message();
}

TEST_F(BadInputTest, T2ALongMessageIsServedApartAndAnsweredAsAnyOther) {
  const Tokens tokens = SomeTokens(31, 200'000);
  const uint64_t before = worker_->Counter("requests.long");
  v1::AcquireReply reply;
  Context context;
  ASSERT_TRUE(worker_->cache->Match(&context, worker_->AcquireOf(space_, tokens), &reply).ok());
  EXPECT_EQ(reply.answers_size(), 1);
  v1::PrefetchReply hints;
  Context hint;
  ASSERT_TRUE(worker_->cache->Prefetch(&hint, worker_->AcquireOf(space_, tokens), &hints).ok());
  EXPECT_EQ(worker_->Counter("requests.long"), before + 2);
  v1::AcquireRequest waits = worker_->AcquireOf(space_, tokens);
  waits.mutable_items(0)->set_wait_pending_ms(1);
  Context waiting;
  EXPECT_TRUE(worker_->cache->Acquire(&waiting, waits, &reply).ok());
  EXPECT_EQ(worker_->Counter("requests.long"), before + 3);
}

}  // namespace
}  // namespace prefixd::testing
