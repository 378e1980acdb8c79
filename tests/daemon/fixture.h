// A served cache in a temporary directory, and a worker's moves over a real unix socket.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "spdlog/spdlog.h"

#include "block/arena_file.h"
#include "cache/cache.h"
#include "daemon/server.h"
#include "prefixd/v1/admin.grpc.pb.h"
#include "prefixd/v1/prefix_cache.grpc.pb.h"
#include "tests/support/kv_pages.h"
#include "wire/admin_socket.h"
#include "wire/bearer.h"
#include "wire/identity.h"
#include "wire/sequence.h"

namespace prefixd::testing {

using block::Token;
using Tokens = std::vector<Token>;
using Pages = std::map<std::pair<uint32_t, uint32_t>, std::string>;  // by group and first token

class TempDir {
 public:
  TempDir() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "prefixd_daemon_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A context whose call ends within `seconds`.
class Context : public grpc::ClientContext {
 public:
  explicit Context(int seconds = 20) {
    set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
  }
};

inline Tokens SomeTokens(uint64_t seed, size_t count) {
  Tokens tokens(count);
  for (size_t i = 0; i < count; ++i)
    tokens[i] = static_cast<Token>(Mix(seed * 1000003 + i) % 50000);
  return tokens;
}

inline constexpr size_t kPiece = size_t{1} << 20;

// An attached worker.
class Worker {
 public:
  // `token_file`: that a worker on TCP reads.
  explicit Worker(const std::string& target, const std::string& token_file = "")
      : channel_(Channel(target, token_file)),
        cache(v1::PrefixCache::NewStub(channel_)),
        admin(v1::Admin::NewStub(Channel(AdminOf(target), token_file))) {}
  ~Worker() { Detach(); }

  // Beside a worker's socket that of people; over TCP there is no other.
  static std::string AdminOf(const std::string& target) {
    const std::string socket = wire::SocketPathOf(target);
    return socket.empty() ? target : "unix:" + wire::AdminSocketOf(socket);
  }
  // Channels of one process share connections unless told otherwise.
  static std::shared_ptr<grpc::Channel> Channel(const std::string& target,
                                                const std::string& token_file = "") {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
                     20);  // tests start daemons all the time
    arguments.SetMaxReceiveMessageSize(-1);
    const auto bearer = std::make_shared<wire::Bearer>(token_file);
    if (!token_file.empty() && !bearer->Reload().ok()) ADD_FAILURE() << token_file;
    return grpc::experimental::CreateCustomChannelWithInterceptors(
        target, grpc::InsecureChannelCredentials(), arguments,
        wire::Carrying(token_file.empty() ? nullptr : bearer));
  }

  void Attach(const std::string& name = "test") {
    v1::AttachRequest request;
    request.set_worker(name);
    request.set_protocol(1);
    Attach(request);
  }
  // As a worker that maps the arena.
  void AttachArena(const std::string& name = "mapper", uint64_t staging_bytes = 1 << 20,
                   const std::string& resume = "") {
    v1::AttachRequest request;
    request.set_worker(name);
    request.set_protocol(1);
    request.set_wants_arena(true);
    request.set_arena_version(block::kArenaVersion);
    request.set_staging_bytes(staging_bytes);
    request.set_resume(resume);
    Attach(request);
  }
  void Attach(const v1::AttachRequest& request) {
    const grpc::Status status = TryAttach(request);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  // What it was refused with, if it was.
  grpc::Status TryAttach(const v1::AttachRequest& request) {
    attach_context_ = std::make_unique<grpc::ClientContext>();
    events = cache->Attach(attach_context_.get(), request);
    v1::SessionEvent event;
    if (!events->Read(&event)) return std::exchange(events, nullptr)->Finish();
    EXPECT_TRUE(event.has_attached());
    attached = event.attached();
    session = attached.session();
    epoch = event.epoch();
    return grpc::Status::OK;
  }
  void Cancel() { attach_context_->TryCancel(); }
  void Detach() {
    if (events == nullptr) return;
    attach_context_->TryCancel();
    events->Finish();
    events.reset();
  }

  // A session opens the spaces that it uses.
  void Open(const block::SpaceIdentity& identity) {
    v1::OpenSpaceReply reply;
    const grpc::Status status = OpenSpace(identity, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  grpc::Status OpenSpace(const block::SpaceIdentity& identity, v1::OpenSpaceReply* reply) {
    Context context;
    v1::OpenSpaceRequest request;
    request.set_session(session);
    *request.mutable_identity() = wire::ToProto(identity);
    return cache->OpenSpace(&context, request, reply);
  }
  grpc::Status Reserve(uint64_t space, const Tokens& tokens, v1::ReserveReply* reply,
                       bool seeds = false) {
    Context context;
    v1::ReserveRequest request;
    request.set_session(session);
    request.set_seeds(seeds);
    wire::ToProto({space}, {tokens, {}}, request.mutable_sequence());
    return cache->Reserve(&context, request, reply);
  }
  grpc::Status Acquire(uint64_t space, const Tokens& tokens, v1::AcquireReply* reply) {
    Context context;
    return cache->Acquire(&context, AcquireOf(space, tokens), reply);
  }
  v1::AcquireRequest AcquireOf(uint64_t space, const Tokens& tokens) const {
    v1::AcquireRequest request;
    request.set_session(session);
    wire::ToProto({space}, {tokens, {}}, request.add_items()->mutable_sequence());
    return request;
  }
  // Sends the messages on one Put stream; stops at the first that is not taken.
  grpc::Status Put(const std::vector<v1::PutChunk>& chunks, v1::CommitReply* reply) {
    Context context;
    auto writer = cache->Put(&context, reply);
    for (const v1::PutChunk& chunk : chunks) {
      if (!writer->Write(chunk)) break;
    }
    writer->WritesDone();
    return writer->Finish();
  }
  // Header, then the pages of every block that is to be sent.
  std::vector<v1::PutChunk> ChunksOf(const block::SpaceIdentity& identity, const Tokens& tokens,
                                     const v1::ReserveReply& plan, bool commit) const {
    std::vector<v1::PutChunk> chunks(1);
    v1::CommitRequest* header = chunks[0].mutable_header();
    header->set_session(session);
    header->set_reservation(plan.reservation());
    if (commit) header->set_tokens(static_cast<uint32_t>(tokens.size()));
    header->set_sequence_end(commit);
    for (const v1::BlockPlan& block : plan.blocks()) {
      if (block.state() == v1::BLOCK_STATE_PRESENT) continue;
      for (uint32_t group = 0; group < identity.groups.size(); ++group) {
        const v1::PageBytes page = PageOf(identity, tokens, block, group);
        for (size_t at = 0; at < page.data().size(); at += kPiece) {
          v1::PageBytes* piece = chunks.emplace_back().mutable_page();
          *piece = page;
          piece->set_offset(at);
          piece->set_data(page.data().substr(at, kPiece));
          const uint64_t seed = block.seed().empty() ? 0 : block.seed(static_cast<int>(group));
          piece->set_sum_seed(seed);
          piece->set_xxh3(
              seed == 0 ? base::Xxh3(base::AsBytes(piece->data()))
                        : base::Xxh3(base::AsBytes(page.data().substr(0, at + kPiece)), seed));
        }
      }
    }
    return chunks;
  }
  static v1::PageBytes PageOf(const block::SpaceIdentity& identity, const Tokens& tokens,
                              const v1::BlockPlan& block, uint32_t group) {
    const auto bytes =
        MakePage(identity.groups[group], 0, tokens, block.first_token(), block.tokens());
    v1::PageBytes page;
    page.set_group(group);
    page.set_first_token(block.first_token());
    page.set_tokens(block.tokens());
    page.set_page_bytes(bytes.size());
    page.set_xxh3(base::Xxh3(bytes));
    page.set_data(bytes.data(), bytes.size());
    return page;
  }
  grpc::Status Store(const block::SpaceIdentity& identity, uint64_t space, const Tokens& tokens,
                     v1::CommitReply* reply) {
    v1::ReserveReply plan;
    const grpc::Status status = Reserve(space, tokens, &plan);
    return status.ok() ? Put(ChunksOf(identity, tokens, plan, true), reply) : status;
  }
  grpc::Status Fetch(uint64_t lease, Pages* pages, std::vector<v1::GroupReady>* ready) {
    Context context;
    v1::FetchRequest request;
    request.set_session(session);
    request.set_lease(lease);
    auto reader = cache->Fetch(&context, request);
    for (v1::FetchChunk chunk; reader->Read(&chunk);) {
      if (chunk.has_ready()) ready->push_back(chunk.ready());
      if (chunk.has_page())
        (*pages)[{chunk.page().group(), chunk.page().first_token()}] += chunk.page().data();
    }
    return reader->Finish();
  }
  v1::GetStatsReply Stats() {
    Context context;
    v1::GetStatsReply reply;
    EXPECT_TRUE(admin->GetStats(&context, {}, &reply).ok()) << "the daemon is not alive";
    return reply;
  }
  uint64_t Counter(const std::string& name) {
    const v1::GetStatsReply stats = Stats();
    for (const v1::Count& count : stats.counters()) {
      if (count.name() == name) return count.value();
    }
    return 0;
  }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<grpc::ClientContext> attach_context_;

 public:
  std::unique_ptr<v1::PrefixCache::Stub> cache;
  std::unique_ptr<v1::Admin::Stub> admin;
  std::unique_ptr<grpc::ClientReader<v1::SessionEvent>> events;
  v1::Attached attached;
  uint64_t session = 0;
  uint64_t epoch = 0;
};

class DaemonTest : public ::testing::Test {
 protected:
  cache::Options CacheOptions() const {
    cache::Options options;
    options.ram_budget_bytes = uint64_t{64} << 20;
    options.ssd_budget_bytes = uint64_t{1} << 30;
    options.directory = dir_.path() + "/ssd";
    options.arena_path = arena_path_;
    return options;
  }
  void SetUp() override {
    spdlog::set_level(spdlog::level::off);
    auto opened = cache::Cache::Open(CacheOptions());
    ASSERT_TRUE(opened.ok()) << opened.status();
    cache_ = *std::move(opened);
    Serve();
    worker_ = std::make_unique<Worker>(target());
    worker_->Attach();
    v1::OpenSpaceReply reply;
    const grpc::Status status = worker_->OpenSpace(identity_, &reply);
    ASSERT_TRUE(status.ok()) << status.error_message();
    space_ = reply.space();
  }
  void Serve() {
    server_.reset();
    auto server =
        daemon::Server::Start(cache_.get(), {.socket = dir_.path() + "/s",
                                             .admin_socket = dir_.path() + "/s.admin.sock",
                                             .listen = "127.0.0.1:0",
                                             .token = token_,
                                             .threads = threads_,
                                             .streams = streams_,
                                             .max_sessions = max_sessions_,
                                             .token_message_bytes = token_message_bytes_,
                                             .message_bytes = message_bytes_,
                                             .tracer = tracer_,
                                             .version = "test",
                                             .settings = {{"ram", "1", "flag"}}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  // Whatever a test did, the daemon still serves.
  void TearDown() override {
    Worker after(target());
    EXPECT_GT(after.Stats().uptime_s(), 0);
    after.Attach();
    v1::OpenSpaceReply space;
    EXPECT_TRUE(after.OpenSpace(identity_, &space).ok());
    v1::CommitReply commit;
    EXPECT_TRUE(after.Store(identity_, space.space(), SomeTokens(424242, 40), &commit).ok());
    std::filesystem::remove(arena_path_);
    std::filesystem::remove(arena_path_ + ".key");
    std::filesystem::remove_all(arena_path_ + ".locks");
  }
  std::string target() const { return "unix:" + dir_.path() + "/s"; }
  std::string tcp() const { return "127.0.0.1:" + std::to_string(server_->port()); }
  std::string TokenFile() const {
    const std::string path = dir_.path() + "/token";
    EXPECT_TRUE(base::WriteSecret(path, token_.secret).ok());
    return path;
  }

  // Asks until `done` says so; false after 20 s.
  template <typename Done>
  bool Eventually(Done done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < deadline) {
      if (done(worker_->Stats())) return true;
    }
    return false;
  }

  TempDir dir_;
  // On a tmpfs; where there is none the daemon serves without it, and the tests that need it skip.
  const std::string arena_path_ =
      "/dev/shm/" + std::filesystem::path(dir_.path()).filename().string() + ".arena";
  const block::SpaceIdentity identity_ = SmallIdentity();
  const daemon::Token token_{.secret = {std::byte{0x70}, std::byte{0x64}}};
  int threads_ = 64, max_sessions_ = 512;
  uint64_t message_bytes_ = uint64_t{1} << 30;
  uint64_t token_message_bytes_ = daemon::ServerOptions{}.token_message_bytes;
  // Tests look at streams that stand still: none ends by itself unless a test says so.
  daemon::StreamPatience streams_{.silence = std::chrono::minutes(10),
                                  .linger = std::chrono::minutes(10)};
  daemon::Tracer* tracer_ = nullptr;  // outlives cache_
  std::unique_ptr<cache::Cache> cache_;
  std::unique_ptr<daemon::Server> server_;
  std::unique_ptr<Worker> worker_;
  uint64_t space_ = 0;
};

}  // namespace prefixd::testing
