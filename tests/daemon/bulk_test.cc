// Fetch and Put as raw messages: what is on the wire is what the .proto says, however it is cut.
#include <set>

#include "grpcpp/generic/generic_stub.h"

#include "tests/daemon/fixture.h"

namespace prefixd::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

std::string Text(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices)
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

// A stream of byte buffers, one step at a time.
class RawCall {
 public:
  RawCall(const std::string& target, const std::string& method) : stub_(NarrowChannel(target)) {
    call_ = stub_.PrepareCall(&context_, method, &queue_);
    call_->StartCall(nullptr);
    Next();
  }
  ~RawCall() {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  bool Write(const std::vector<std::string>& slices) {
    std::vector<grpc::Slice> parts(slices.begin(), slices.end());
    call_->Write(grpc::ByteBuffer(parts.data(), parts.size()), nullptr);
    return Next();
  }
  void WritesDone() {
    call_->WritesDone(nullptr);
    Next();
  }
  bool Read(std::string* message) {
    grpc::ByteBuffer buffer;
    call_->Read(&buffer, nullptr);
    if (!Next()) return false;
    *message = Text(buffer);
    return true;
  }
  grpc::Status Finish() {
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Next();
    return status;
  }

 private:
  // The daemon is never more than a few messages ahead.
  static std::shared_ptr<grpc::Channel> NarrowChannel(const std::string& target) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  }
  bool Next() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }
  Context context_;
  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

constexpr char kFetch[] = "/prefixd.v1.PrefixCache/Fetch";
constexpr char kPut[] = "/prefixd.v1.PrefixCache/Put";

class BulkTest : public DaemonTest {
 protected:
  // A group's page of 1.3 MiB: it travels in two pieces.
  static block::SpaceIdentity WideIdentity() {
    block::SpaceIdentity identity = SmallIdentity();
    identity.model = "wide";
    for (block::LayerGroup& group : identity.groups) group.kv_heads = 160;
    return identity;
  }
  uint64_t OpenWide() {
    v1::OpenSpaceReply reply;
    const grpc::Status status = worker_->OpenSpace(wide_, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply.space();
  }
  uint64_t Lease(uint64_t space, const Tokens& tokens) {
    v1::AcquireReply reply;
    EXPECT_TRUE(worker_->Acquire(space, tokens, &reply).ok());
    return reply.answers(0).lease();
  }
  v1::FetchRequest FetchOf(uint64_t lease) const {
    v1::FetchRequest request;
    request.set_session(worker_->session);
    request.set_lease(lease);
    return request;
  }
  grpc::Status PutSliced(const Tokens& tokens,
                         const std::function<std::vector<std::string>(const std::string&)>& cut,
                         std::string* reply) {
    v1::ReserveReply plan;
    EXPECT_TRUE(worker_->Reserve(space_, tokens, &plan).ok());
    RawCall call(target(), kPut);
    for (const v1::PutChunk& chunk : worker_->ChunksOf(identity_, tokens, plan, true)) {
      if (!call.Write(cut(chunk.SerializeAsString()))) break;
    }
    call.WritesDone();
    call.Read(reply);
    return call.Finish();
  }
  void ExpectStored(const Tokens& tokens) {
    Pages pages;
    std::vector<v1::GroupReady> ready;
    ASSERT_TRUE(worker_->Fetch(Lease(space_, tokens), &pages, &ready).ok());
    EXPECT_EQ(pages.size(), (tokens.size() + 15) / 16 * 2);
    for (const auto& [place, bytes] : pages) {
      const auto& [group, first] = place;
      const auto count = std::min(16u, static_cast<uint32_t>(tokens.size()) - first);
      EXPECT_EQ(bytes, base::AsText(MakePage(identity_.groups[group], 0, tokens, first, count)));
    }
  }

  const block::SpaceIdentity wide_ = WideIdentity();
};

TEST_F(BulkTest, EveryFetchMessageIsWhatTheGeneratedClassWrites) {
  const Tokens tokens = SomeTokens(1, 60);
  const uint64_t space = OpenWide();
  v1::CommitReply stored;
  const grpc::Status status = worker_->Store(wide_, space, tokens, &stored);
  ASSERT_TRUE(status.ok()) << status.error_message();
  // Cut in the last page: one that is copied.
  RawCall call(target(), kFetch);
  ASSERT_TRUE(call.Write(
      {FetchOf(Lease(space, Tokens(tokens.begin(), tokens.begin() + 55))).SerializeAsString()}));
  call.WritesDone();
  Pages pages;
  int readies = 0;
  for (std::string message; call.Read(&message);) {
    v1::FetchChunk chunk;
    ASSERT_TRUE(chunk.ParseFromString(message));
    EXPECT_EQ(chunk.SerializeAsString(), message);
    readies += chunk.has_ready();
    if (!chunk.has_page()) continue;
    EXPECT_LE(chunk.page().data().size(), 1u << 20);
    EXPECT_EQ(chunk.page().xxh3(), base::Xxh3(base::AsBytes(chunk.page().data())));
    std::string& page = pages[{chunk.page().group(), chunk.page().first_token()}];
    EXPECT_EQ(chunk.page().offset(), page.size());
    page += chunk.page().data();
  }
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_EQ(readies, 2);
  ASSERT_EQ(pages.size(), 8u);
  for (const auto& [place, bytes] : pages) {
    const auto& [group, first] = place;
    const auto wanted = MakePage(wide_.groups[group], 0, tokens, first, std::min(16u, 55u - first));
    EXPECT_TRUE(bytes == base::AsText(wanted)) << "group " << group << " token " << first;
  }
}

TEST_F(BulkTest, SeededSumsAreWhatTheGeneratedClassWritesToo) {
  const Tokens tokens = SomeTokens(3, 40);
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, tokens, &stored).ok());
  v1::FetchRequest request = FetchOf(Lease(space_, tokens));
  request.set_seeded_sums(true);
  RawCall call(target(), kFetch);
  ASSERT_TRUE(call.Write({request.SerializeAsString()}));
  call.WritesDone();
  std::set<uint64_t> seeds;
  int pages = 0;
  for (std::string message; call.Read(&message);) {
    v1::FetchChunk chunk;
    ASSERT_TRUE(chunk.ParseFromString(message));
    EXPECT_EQ(chunk.SerializeAsString(), message);
    if (!chunk.has_page()) continue;
    ++pages;
    const v1::PageBytes& page = chunk.page();
    EXPECT_EQ(page.xxh3(), base::Xxh3(base::AsBytes(page.data()), page.sum_seed()));
    seeds.insert(page.sum_seed());
  }
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_EQ(pages, 6);
  EXPECT_EQ(seeds.size(), 6u);  // of the page's name, each another
  EXPECT_FALSE(seeds.contains(0));
}

// More of them than wait to be written at a time, and read late.
TEST_F(BulkTest, AReaderThatIsSlowGetsEveryPageInOrder) {
  const Tokens tokens = SomeTokens(4, 10 * 16);
  const uint64_t space = OpenWide();
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(wide_, space, tokens, &stored).ok());
  RawCall call(target(), kFetch);
  ASSERT_TRUE(call.Write({FetchOf(Lease(space, tokens)).SerializeAsString()}));
  call.WritesDone();
  worker_->Stats();  // the stream is full meanwhile, and another call goes through beside it
  uint32_t next = 0, group = 0;
  for (std::string message; call.Read(&message);) {
    v1::FetchChunk chunk;
    ASSERT_TRUE(chunk.ParseFromString(message));
    if (chunk.has_ready()) {
      EXPECT_EQ(next, 10u * 16);
      ++group;
      next = 0;
      continue;
    }
    EXPECT_EQ(chunk.page().group(), group);
    EXPECT_EQ(chunk.page().first_token(), chunk.page().offset() == 0 ? next : next - 16);
    if (chunk.page().offset() == 0) next += 16;
  }
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_EQ(group, 2u);
}

TEST_F(BulkTest, APutMayBeCutAnywhere) {
  uint64_t seed = 1;
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{64}, size_t{1000}}) {
    const Tokens tokens = SomeTokens(seed++, 40);
    std::string reply;
    const grpc::Status status = PutSliced(
        tokens,
        [piece](const std::string& message) {
          std::vector<std::string> slices;
          for (size_t at = 0; at < message.size(); at += piece)
            slices.push_back(message.substr(at, piece));
          return slices;
        },
        &reply);
    ASSERT_TRUE(status.ok()) << status.error_message();
    v1::CommitReply commit;
    ASSERT_TRUE(commit.ParseFromString(reply));
    EXPECT_EQ(commit.stored_tokens(), 40u);
    EXPECT_EQ(commit.epoch(), worker_->epoch);
    ExpectStored(tokens);
  }
}

// Everything that protobuf reads as that page is that page.
TEST_F(BulkTest, APageInAnUnusualEncodingIsTaken) {
  const auto unusual = [](const std::string& message) -> std::vector<std::string> {
    v1::PutChunk chunk;
    EXPECT_TRUE(chunk.ParseFromString(message));
    if (!chunk.has_page()) return {message};
    v1::PutChunk data, rest = chunk;  // two messages merged: the data comes first
    data.mutable_page()->set_data(chunk.page().data());
    rest.mutable_page()->clear_data();
    return {data.SerializeAsString(), rest.SerializeAsString()};
  };
  std::string reply;
  const grpc::Status status = PutSliced(SomeTokens(9, 40), unusual, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ExpectStored(SomeTokens(9, 40));
}

TEST_F(BulkTest, APutThatArrivesDamagedStoresNothing) {
  int number = 0;
  const auto damage = [&number](const std::string& message) -> std::vector<std::string> {
    std::string bytes = message;
    if (number++ == 2) bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);
    return {bytes.substr(0, bytes.size() / 2), bytes.substr(bytes.size() / 2)};
  };
  std::string reply;
  const grpc::Status status = PutSliced(SomeTokens(10, 40), damage, &reply);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("XXH3"));
  EXPECT_TRUE(Eventually([](const v1::GetStatsReply& stats) { return stats.reservations() == 0; }));
  v1::AcquireReply acquired;
  ASSERT_TRUE(worker_->Acquire(space_, SomeTokens(10, 40), &acquired).ok());
  EXPECT_EQ(acquired.answers(0).matched_tokens(), 0u);
}

// The sum that came with a page is the one that is kept with it.
TEST_F(BulkTest, APutWithTheSeedsOfThePlanIsStored) {
  const Tokens tokens = SomeTokens(11, 40);
  const uint64_t space = OpenWide();  // pages in two pieces
  v1::ReserveReply plan;
  ASSERT_TRUE(worker_->Reserve(space, tokens, &plan, /*seeds=*/true).ok());
  ASSERT_EQ(plan.blocks(0).seed_size(), 2);
  const std::vector<v1::PutChunk> chunks = worker_->ChunksOf(wide_, tokens, plan, true);
  v1::CommitReply stored;
  const grpc::Status status = worker_->Put(chunks, &stored);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(stored.stored_tokens(), 40u);
  Pages pages;
  std::vector<v1::GroupReady> ready;
  ASSERT_TRUE(worker_->Fetch(Lease(space, tokens), &pages, &ready).ok());
  ASSERT_EQ(pages.size(), 6u);
  for (const auto& [place, bytes] : pages) {
    const auto& [group, first] = place;
    const auto count = std::min(16u, 40 - first);
    EXPECT_EQ(bytes, base::AsText(MakePage(wide_.groups[group], 0, tokens, first, count)));
  }
}

TEST_F(BulkTest, ASeededPutThatArrivesDamagedOrUnderAnotherPagesSeedStoresNothing) {
  const std::function<void(v1::PageBytes*)> spoils[] = {
      [](auto* page) { (*page->mutable_data())[77] ^= 1; },
      [](auto* page) { page->set_xxh3(page->xxh3() + 1); },
      [](auto* page) {  // of the page's bytes, but not its own seed
        page->set_sum_seed(page->sum_seed() + 1);
        page->set_xxh3(base::Xxh3(base::AsBytes(page->data()), page->sum_seed()));
      },
      [](auto* page) { page->set_sum_seed(0); },
  };
  for (const auto& spoil : spoils) {
    const Tokens tokens = SomeTokens(12, 40);
    v1::ReserveReply plan;
    ASSERT_TRUE(worker_->Reserve(space_, tokens, &plan, /*seeds=*/true).ok());
    std::vector<v1::PutChunk> chunks = worker_->ChunksOf(identity_, tokens, plan, true);
    spoil(chunks[2].mutable_page());
    v1::CommitReply stored;
    EXPECT_EQ(worker_->Put(chunks, &stored).error_code(), StatusCode::INVALID_ARGUMENT);
    v1::AcquireReply acquired;
    ASSERT_TRUE(worker_->Acquire(space_, tokens, &acquired).ok());
    EXPECT_EQ(acquired.answers(0).matched_tokens(), 0u);
  }
}

TEST_F(BulkTest, GarbageInsteadOfAMessageIsRefused) {
  for (const char* method : {kFetch, kPut}) {
    RawCall call(target(), method);
    call.Write({std::string("\xff\xff\xff garbage")});
    call.WritesDone();
    EXPECT_EQ(call.Finish().error_code(), StatusCode::INVALID_ARGUMENT) << method;
  }
  int number = 0;
  std::string reply;
  const auto garbage = [&number](const std::string& message) -> std::vector<std::string> {
    return {number++ == 1 ? std::string("\x12\xff\xff\xff garbage") : message};
  };
  EXPECT_THAT(PutSliced(SomeTokens(11, 40), garbage, &reply).error_message(),
              HasSubstr("message 1 is not a page"));
}

TEST_F(BulkTest, AClientKilledMidFetchHoldsNothing) {
  const Tokens tokens = SomeTokens(1, 160);
  const uint64_t space = OpenWide();
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(wide_, space, tokens, &stored).ok());
  {
    Worker victim(target());
    victim.Attach();
    victim.Open(wide_);
    v1::AcquireReply reply;
    ASSERT_TRUE(victim.Acquire(space, tokens, &reply).ok());
    Context context;
    v1::FetchRequest request;
    request.set_session(victim.session);
    request.set_lease(reply.answers(0).lease());
    auto reader = victim.cache->Fetch(&context, request);
    v1::FetchChunk chunk;
    ASSERT_TRUE(reader->Read(&chunk));
    context.TryCancel();
    reader->Finish();
  }
  EXPECT_TRUE(Eventually(
      [](const v1::GetStatsReply& stats) { return stats.leases() == 0 && stats.sessions() == 1; }));
  EXPECT_TRUE(Eventually([this](const v1::GetStatsReply&) { return server_->idle(); }));
}

// Flow control: a reader that stops costs two messages, whatever it asked for.
TEST_F(BulkTest, AReaderThatStopsIsWaitedFor) {
  const Tokens tokens = SomeTokens(1, 160);
  const uint64_t space = OpenWide();
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(wide_, space, tokens, &stored).ok());
  Context context;
  auto reader = worker_->cache->Fetch(&context, FetchOf(Lease(space, tokens)));
  v1::FetchChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  // Meanwhile others are served, and the lease's pages stay.
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(server_->idle());
  v1::CommitReply other;
  EXPECT_TRUE(worker_->Store(identity_, space_, SomeTokens(2, 40), &other).ok());
  size_t bytes = chunk.page().data().size();
  while (reader->Read(&chunk)) bytes += chunk.page().data().size();
  EXPECT_TRUE(reader->Finish().ok());
  size_t wanted = 0;
  for (uint32_t first = 0; first < 160; first += 16)
    wanted += 2 * block::LayoutOfPage(wide_.groups[0], 0, 16).page_bytes;
  EXPECT_EQ(bytes, wanted);
}

}  // namespace
}  // namespace prefixd::testing
