// Nobody's waiting is in the way of others: calls for another worker, streams that stand still,
// deadlines of any length.
#include <future>
#include <thread>

#include "daemon/call.h"
#include "daemon/shares.h"
#include "daemon/stream_limit.h"
#include "tests/daemon/fixture.h"

namespace prefixd::testing {
namespace {

using grpc::StatusCode;
using std::chrono::hours;
using ::testing::HasSubstr;

uint64_t Of(const v1::GetStatsReply& stats, const std::string& name) {
  for (const v1::Count& count : stats.counters()) {
    if (count.name() == name) return count.value();
  }
  return 0;
}

class WaitsTest : public DaemonTest {
 protected:
  static constexpr int kThreads = 8;

  WaitsTest() { threads_ = kThreads; }
  // Something that is announced and never comes.
  void AnnounceForEver() {
    v1::ReserveReply plan;
    ASSERT_TRUE(worker_->Reserve(space_, pending_, &plan).ok());
  }
  // An attached worker that has the space open.
  std::unique_ptr<Worker> Another(const std::string& name) {
    auto worker = std::make_unique<Worker>(target());
    worker->Attach(name);
    worker->Open(identity_);
    return worker;
  }
  // Waits for what never comes, as long as it may.
  v1::AcquireRequest Waiting(const Worker& worker) const {
    v1::AcquireRequest request = worker.AcquireOf(space_, pending_);
    request.mutable_items(0)->set_wait_pending_ms(0xffffffff);
    return request;
  }
  void ExpectAdminIsServed() {
    v1::FlushReply flushed;
    v1::ClearReply cleared;
    v1::SetBudgetsReply budgets;
    v1::VerifyReply verified;
    Context flush, clear, set, verify;
    EXPECT_TRUE(worker_->admin->Flush(&flush, {}, &flushed).ok());
    EXPECT_TRUE(worker_->admin->SetBudgets(&set, {}, &budgets).ok());
    EXPECT_TRUE(worker_->admin->Verify(&verify, {}, &verified).ok());
    EXPECT_TRUE(worker_->admin->Clear(&clear, {}, &cleared).ok());
  }

  const Tokens pending_ = SomeTokens(77, 64);
};

// One call that waits, on a completion queue of its own.
class WaitingCall {
 public:
  WaitingCall(Worker* worker, const v1::AcquireRequest& request)
      : call_(worker->cache->AsyncAcquire(&context_, request, &queue_)) {
    call_->Finish(&reply_, &status_, this);
  }
  ~WaitingCall() {
    Cancel();
    if (!done_) End();
  }
  void Cancel() { context_.TryCancel(); }
  grpc::Status End() {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
    done_ = true;
    return status_;
  }

 private:
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  v1::AcquireReply reply_;
  grpc::Status status_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::AcquireReply>> call_;
  bool done_ = false;
};

TEST_F(WaitsTest, T4CallsThatWaitForAWorkerThatIsGoneKeepNobodyElseWaiting) {
  AnnounceForEver();
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::unique_ptr<WaitingCall>> calls;
  for (int i = 0; i < 2 * kThreads; ++i) {
    workers.push_back(Another("waiter"));
    for (int j = 0; j < 2; ++j)
      calls.push_back(
          std::make_unique<WaitingCall>(workers.back().get(), Waiting(*workers.back())));
  }
  // More wait than there are threads: the others were refused.
  EXPECT_TRUE(Eventually(
      [&](const v1::GetStatsReply& stats) { return Of(stats, "refused.share") >= kThreads; }));
  ExpectAdminIsServed();
  v1::CommitReply stored;
  EXPECT_TRUE(worker_->Store(identity_, space_, SomeTokens(5, 64), &stored).ok());
  v1::AcquireReply found;
  EXPECT_TRUE(worker_->Acquire(space_, SomeTokens(5, 64), &found).ok());
  EXPECT_EQ(found.answers(0).restorable_tokens(), 64u);
  // They give up, and their threads serve others at once.
  calls.clear();
  auto late = Another("late");
  v1::AcquireRequest request = Waiting(*late);
  request.mutable_items(0)->set_wait_pending_ms(1);
  EXPECT_TRUE(Eventually([&](const v1::GetStatsReply&) {
    Context context;
    v1::AcquireReply reply;
    return late->cache->Acquire(&context, request, &reply).ok();
  }));
}

TEST_F(WaitsTest, T4OneSessionLeavesThreadsForOthers) {
  AnnounceForEver();
  auto greedy = Another("greedy"), modest = Another("modest");
  std::vector<std::unique_ptr<WaitingCall>> calls;
  for (int i = 0; i < 2 * kThreads; ++i)
    calls.push_back(std::make_unique<WaitingCall>(greedy.get(), Waiting(*greedy)));
  EXPECT_TRUE(Eventually(
      [&](const v1::GetStatsReply& stats) { return Of(stats, "refused.share") == kThreads; }));
  v1::AcquireRequest request = Waiting(*modest);
  request.mutable_items(0)->set_wait_pending_ms(1);
  Context context;
  v1::AcquireReply reply;
  EXPECT_TRUE(modest->cache->Acquire(&context, request, &reply).ok());
}

class SilentStreamTest : public WaitsTest {
 protected:
  // As tests that store need it, also on a slow machine.
  void ServePatiently() {
    streams_ = {.silence = hours(1), .linger = hours(1)};
    Serve();
  }
  struct HalfPut {
    grpc::ClientContext context;
    v1::PutChunk header;
    v1::CommitReply reply;
    std::unique_ptr<grpc::ClientWriter<v1::PutChunk>> writer;
  };
  // Nothing sent but what opens the stream.
  std::unique_ptr<HalfPut> OpenPut(Worker* worker, uint64_t seed) {
    v1::ReserveReply plan;
    EXPECT_TRUE(worker->Reserve(space_, SomeTokens(seed, 32), &plan).ok());
    auto put = std::make_unique<HalfPut>();
    put->context.set_deadline(std::chrono::system_clock::now() + hours(24));
    put->writer = worker->cache->Put(&put->context, &put->reply);
    put->header.mutable_header()->set_session(worker->session);
    put->header.mutable_header()->set_reservation(plan.reservation());
    return put;
  }
  // Header sent, nothing more.
  std::unique_ptr<HalfPut> BeginPut(Worker* worker, uint64_t seed) {
    auto put = OpenPut(worker, seed);
    EXPECT_TRUE(put->writer->Write(put->header));
    return put;
  }
};

TEST_F(SilentStreamTest, T4HalfOpenPutsKeepNobodyFromStoring) {
  streams_ = {.silence = hours(1), .linger = std::chrono::milliseconds(1)};
  Serve();
  worker_ = Another("storer");
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::unique_ptr<HalfPut>> puts;
  for (uint64_t i = 0; i < 4 * kThreads; ++i) {
    workers.push_back(Another("silent"));
    puts.push_back(BeginPut(workers.back().get(), 900 + i));
  }
  v1::CommitReply stored;
  EXPECT_TRUE(Eventually([&](const v1::GetStatsReply&) {
    return worker_->Store(identity_, space_, SomeTokens(5, 64), &stored).ok();
  }));
  EXPECT_EQ(stored.stored_tokens() + stored.duplicate_tokens(), 64u);
  // One that goes on is served, too.
  puts[0]->writer->WritesDone();
  EXPECT_TRUE(puts[0]->writer->Finish().ok());
  // And none holds a drain.
  server_->BeginDrain(1000);
  EXPECT_TRUE(Eventually([&](const v1::GetStatsReply&) { return server_->idle(); }));
  for (auto& put : puts) put->context.TryCancel();
  Serve();
}

TEST_F(SilentStreamTest, T4APutWhoseHeaderComesLateHoldsNoDrain) {
  streams_ = {.silence = hours(1), .linger = std::chrono::milliseconds(0)};
  Serve();
  worker_ = Another("late");
  std::vector<std::unique_ptr<HalfPut>> puts;
  for (uint64_t i = 0; i < 8; ++i) puts.push_back(OpenPut(worker_.get(), 900 + i));
  for (int i = 0; i < 8; ++i) worker_->Stats();  // the streams have lingered meanwhile
  for (auto& put : puts) EXPECT_TRUE(put->writer->Write(put->header));
  // The headers of the others came before, on the same connection.
  puts.back()->writer->WritesDone();
  EXPECT_TRUE(puts.back()->writer->Finish().ok());
  EXPECT_TRUE(Eventually([&](const v1::GetStatsReply&) { return server_->idle(); }));
  for (auto& put : puts) put->context.TryCancel();
  ServePatiently();
}

TEST_F(SilentStreamTest, T4APutThatBringsNothingEndsAndSaysSo) {
  streams_ = {.silence = std::chrono::milliseconds(50), .linger = std::chrono::milliseconds(10)};
  Serve();
  worker_ = Another("silent");
  // Where the header came in time, its reservation ends with the stream.
  EXPECT_TRUE(Eventually([&](const v1::GetStatsReply& before) {
    auto put = BeginPut(worker_.get(), 900);
    const grpc::Status status = put->writer->Finish();
    EXPECT_EQ(status.error_code(), StatusCode::DEADLINE_EXCEEDED) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("put: no message came for 0.05 s"));
    return worker_->Stats().reservations() == before.reservations();
  }));
  EXPECT_GE(worker_->Counter("streams.stalled"), 1u);
  // A stream without so much as a header, too.
  grpc::ClientContext context;
  v1::CommitReply reply;
  const auto mute = worker_->cache->Put(&context, &reply);
  EXPECT_EQ(mute->Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  ServePatiently();
}

TEST_F(SilentStreamTest, T4AFetchThatNobodyReadsEndsAndHoldsNoDrain) {
  block::SpaceIdentity wide = SmallIdentity();
  wide.model = "wide";
  for (block::LayerGroup& group : wide.groups) group.kv_heads = 160;
  v1::OpenSpaceReply space;
  ASSERT_TRUE(worker_->OpenSpace(wide, &space).ok());
  const Tokens tokens = SomeTokens(1, 160);
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(wide, space.space(), tokens, &stored).ok());
  streams_ = {.silence = std::chrono::milliseconds(500), .linger = std::chrono::milliseconds(10)};
  Serve();
  worker_ = Another("reader");
  worker_->Open(wide);
  v1::AcquireReply acquired;
  ASSERT_TRUE(worker_->Acquire(space.space(), tokens, &acquired).ok());
  v1::FetchRequest request;
  request.set_session(worker_->session);
  request.set_lease(acquired.answers(0).lease());
  grpc::ClientContext context;
  const auto reader = worker_->cache->Fetch(&context, request);
  // Nobody reads. Held by nothing soon, and over after a while.
  EXPECT_TRUE(Eventually([&](const v1::GetStatsReply& stats) {
    return Of(stats, "streams.stalled") == 1 && server_->idle();
  }));
  for (v1::FetchChunk chunk; reader->Read(&chunk);) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("fetch: nobody read for 0.5 s"));
  ServePatiently();
}

TEST(DeadlineTest, T4NoDeadlineIsTooLongOrOverflows) {
  using daemon::DeadlineOf;
  const auto seconds_left = [](gpr_timespec deadline, std::chrono::seconds longest) {
    const base::Deadline until = DeadlineOf(deadline, longest);
    return std::chrono::duration<double>(until - std::chrono::steady_clock::now()).count();
  };
  const gpr_timespec now = gpr_now(GPR_CLOCK_REALTIME);
  gpr_timespec year_3000 = now, end_of_time = now, past = now, in_5_s = now;
  year_3000.tv_sec += int64_t{1000} * 365 * 24 * 3600;
  end_of_time.tv_sec = INT64_MAX - 1;
  past.tv_sec = -5'000'000'000;
  in_5_s.tv_sec += 5;
  for (const gpr_timespec far : {year_3000, end_of_time}) {
    EXPECT_LE(seconds_left(far, daemon::kMaxWait), 60);
    EXPECT_GT(seconds_left(far, daemon::kMaxStream), 60);
  }
  EXPECT_LE(seconds_left(gpr_inf_future(GPR_CLOCK_REALTIME), daemon::kMaxStream), 60);
  EXPECT_LE(seconds_left(past, daemon::kMaxWait), 0);
  EXPECT_LE(seconds_left(gpr_inf_past(GPR_CLOCK_REALTIME), daemon::kMaxWait), 0);
  EXPECT_LE(seconds_left(in_5_s, daemon::kMaxWait), 5);
}

TEST_F(WaitsTest, T4ADeadlineInTheNextMillenniumIsServed) {
  grpc::ClientContext context;
  gpr_timespec deadline = gpr_now(GPR_CLOCK_REALTIME);
  deadline.tv_sec += int64_t{1000} * 365 * 24 * 3600;
  context.set_deadline(deadline);
  v1::AcquireReply reply;
  const grpc::Status status =
      worker_->cache->Acquire(&context, worker_->AcquireOf(space_, SomeTokens(1, 64)), &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(SharesTest, T4NobodyHasMoreThanItLeavesToOthers) {
  daemon::Shares shares(8);
  std::vector<daemon::Shares::Share> first, second, host;
  const auto take_all = [&](uint64_t session, const std::string& peer, auto* taken) {
    while (auto share = shares.Take({session}, peer)) taken->push_back(share);
  };
  take_all(1, "unix:", &first);
  EXPECT_EQ(first.size(), 4u);
  take_all(2, "unix:", &second);
  EXPECT_EQ(second.size(), 2u);
  EXPECT_NE(shares.Take({3}, "unix:"), nullptr);  // given back at once
  first.clear();
  second.clear();
  // Sessions of one host share what the host may have.
  for (uint64_t session = 10; session < 20; ++session)
    take_all(session, "ipv4:10.0.0.7:" + std::to_string(4000 + session), &host);
  EXPECT_EQ(host.size(), 4u);
  EXPECT_NE(shares.Take({30}, "ipv4:10.0.0.8:4711"), nullptr);
  EXPECT_EQ(daemon::HostOf("ipv6:[::1]:4711"), "ipv6:[::1]");
  EXPECT_EQ(daemon::HostOf("unix:"), "");
}

TEST(SharesTest, T3NobodyKeepsMoreMemoryWithItsThreadsThanItLeavesToOthers) {
  daemon::Shares shares(64, 1000);
  const auto whole = shares.Take({1}, "unix:", 1000);
  EXPECT_NE(whole, nullptr) << "the largest request fits where nobody else has any";
  EXPECT_EQ(shares.Take({2}, "unix:", 1), nullptr);
  EXPECT_NE(shares.Take({2}, "unix:"), nullptr) << "what takes no memory is not refused for it";
}

TEST(SharesTest, T3MemoryIsGivenBackWithTheThread) {
  daemon::Shares shares(64, 1000);
  std::vector<daemon::Shares::Share> own;
  while (auto share = shares.Take({1}, "unix:", 100)) own.push_back(share);
  EXPECT_EQ(own.size(), 5u);  // with one more it would have more than is left
  std::vector<daemon::Shares::Share> others;
  while (auto share = shares.Take({2}, "unix:", 100)) others.push_back(share);
  EXPECT_EQ(others.size(), 3u);
  own.clear();
  others.clear();
  EXPECT_NE(shares.Take({3}, "unix:", 1000), nullptr);
}

// T2: what a session held is known once the index is loaded; who resumes waits for it alone.
TEST_F(WaitsTest, T2SessionsThatResumeWhileTheIndexLoadsAreInNobodysWay) {
  constexpr int kResuming = 64;  // more than gRPC has threads
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 64), &stored).ok());
  cache_->Flush(std::chrono::steady_clock::now() + std::chrono::seconds(60));
  worker_.reset();
  server_.reset();
  cache_.reset();
  std::promise<void> go;
  cache::Options options = CacheOptions();
  options.open_within = std::chrono::milliseconds(0);
  options.resume_within = hours(1);
  options.log = [held = go.get_future().share()](cache::LogLevel, const std::string& line) {
    if (line.starts_with("index: loading from")) held.wait();
  };
  cache_ = *cache::Cache::Open(options);
  Serve();
  worker_ = std::make_unique<Worker>(target());
  v1::AttachRequest request;
  request.set_worker("resumes");
  request.set_protocol(1);
  request.set_wants_arena(true);
  request.set_arena_version(block::kArenaVersion);
  request.set_resume(std::string(16, 'k'));
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::SessionEvent>>> streams;
  for (int i = 0; i < kResuming; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(worker_->cache->Attach(contexts.back().get(), request));
  }
  worker_->Attach("quiet");
  v1::OpenSpaceReply opened;
  ASSERT_TRUE(worker_->OpenSpace(identity_, &opened).ok());
  space_ = opened.space();
  v1::AcquireReply reply;
  EXPECT_TRUE(worker_->Acquire(space_, SomeTokens(1, 64), &reply).ok());
  contexts[0]->TryCancel();  // gone before it has begun
  go.set_value();
  for (int i = 0; i < kResuming; ++i) {
    v1::SessionEvent event;
    EXPECT_TRUE(i == 0 || (streams[i]->Read(&event) && event.has_attached())) << i;
    contexts[i]->TryCancel();
    streams[i]->Finish();
  }
}

}  // namespace
}  // namespace prefixd::testing
