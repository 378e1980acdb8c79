// A daemon that is slow, wrong or breaks off: a shorter match or none, within the deadline, never a
// wrong byte. Played by a service that does what no real prefixd does.
#include <grpcpp/server_builder.h>

#include <chrono>
#include <functional>
#include <future>

#include "base/bytes.h"
#include "block/page_layout.h"
#include "prefixd/v1/prefix_cache.grpc.pb.h"
#include "tests/client/support.h"
#include "wire/identity.h"

namespace prefixd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr uint32_t kBlock = 64;

class BadDaemon final : public v1::PrefixCache::Service {
 public:
  explicit BadDaemon(const std::string& address) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~BadDaemon() override {
    LetGo();
    server_->Shutdown(std::chrono::system_clock::now());
  }
  void LetGo() {
    if (!std::exchange(gone_, true)) let_go_.set_value();
  }

  uint32_t tokens = 192;  // leased
  bool hang_on_acquire = false, hang_on_fetch = false;
  std::function<void(v1::AcquireReply*)> change_answer = [](v1::AcquireReply*) {};
  // Changes a page before it is sent; false breaks the stream off.
  std::function<bool(v1::PageBytes*)> change_page = [](v1::PageBytes*) { return true; };

 private:
  grpc::Status Attach(grpc::ServerContext* context, const v1::AttachRequest*,
                      grpc::ServerWriter<v1::SessionEvent>* events) override {
    v1::SessionEvent event;
    event.set_epoch(1);
    event.mutable_attached()->set_session(1);
    events->Write(event);
    while (!context->IsCancelled() &&
           let_go_seen_.wait_for(milliseconds(20)) != std::future_status::ready) {
    }
    return grpc::Status::OK;
  }
  grpc::Status OpenSpace(grpc::ServerContext*, const v1::OpenSpaceRequest* request,
                         v1::OpenSpaceReply* reply) override {
    groups_ = wire::FromProto(request->identity())->groups;
    reply->set_epoch(1);
    reply->set_space(1);
    reply->set_block_tokens(kBlock);
    return grpc::Status::OK;
  }
  grpc::Status Acquire(grpc::ServerContext*, const v1::AcquireRequest*,
                       v1::AcquireReply* reply) override {
    if (hang_on_acquire) let_go_seen_.wait();
    reply->set_epoch(1);
    v1::Answer* answer = reply->add_answers();
    answer->set_lease(1);
    answer->set_matched_tokens(tokens);
    answer->set_restorable_tokens(tokens);
    answer->set_kind(v1::MATCH_KIND_EXACT);
    for (uint32_t group = 0; group < groups_.size(); ++group) {
      v1::GroupPages* pages = answer->add_pages();
      pages->set_group(group);
      for (uint32_t at = 0; at < tokens; at += kBlock) {
        pages->add_rung(0);
        pages->add_page_tokens(kBlock);
      }
    }
    change_answer(reply);
    return grpc::Status::OK;
  }
  grpc::Status Fetch(grpc::ServerContext*, const v1::FetchRequest* request,
                     grpc::ServerWriter<v1::FetchChunk>* chunks) override {
    if (hang_on_fetch) let_go_seen_.wait();
    for (uint32_t group : request->groups()) {
      for (uint32_t at = 0; at < tokens; at += kBlock) {
        v1::FetchChunk chunk;
        v1::PageBytes* page = chunk.mutable_page();
        const uint32_t slots = std::min(kBlock, tokens - at);
        const uint64_t bytes = block::LayoutOfPage(groups_[group], 0, slots).page_bytes;
        page->set_group(group);
        page->set_first_token(at);
        page->set_tokens(slots);
        page->set_page_bytes(bytes);
        page->set_data(std::string(bytes, static_cast<char>(1 + group * 16 + at / kBlock)));
        page->set_xxh3(base::Xxh3(base::AsBytes(std::string_view(page->data()))));
        if (!change_page(page)) return {grpc::StatusCode::UNAVAILABLE, "broken off"};
        if (!chunks->Write(chunk)) return grpc::Status::OK;
      }
      v1::FetchChunk chunk;
      chunk.mutable_ready()->set_group(group);
      chunk.mutable_ready()->set_usable_tokens(tokens);
      chunks->Write(chunk);
    }
    return grpc::Status::OK;
  }
  grpc::Status Release(grpc::ServerContext*, const v1::ReleaseRequest*, v1::Ack* ack) override {
    ack->set_epoch(1);
    return grpc::Status::OK;
  }

  std::vector<block::LayerGroup> groups_;
  std::promise<void> let_go_;
  std::shared_future<void> let_go_seen_ = let_go_.get_future().share();
  bool gone_ = false;
  std::unique_ptr<grpc::Server> server_;
};

class BadDaemonTest : public testing::Test {
 protected:
  void SetUp() override {
    space_ = client_.OpenSpace(spec_);
    ASSERT_TRUE(space_.ok()) << space_.status.message;
    ASSERT_TRUE(client_.attached());
  }
  Sequence Begin() { return space_.value().Begin(tokens_, {.deadline = milliseconds(20'000)}); }

  // The sequence falls back to `usable` tokens and goes on from there.
  void ExpectRestartAt(Sequence seq, uint32_t usable) {
    ASSERT_EQ(seq.match().restorable_tokens, 192u);
    EXPECT_EQ(seq.WaitAll(), usable);
    EXPECT_EQ(seq.restorable_tokens(), usable);
    const std::vector<float> row(1024);
    EXPECT_EQ(seq.Append(0, 192, 1, {row.data()}, {row.data()}).code,
              StatusCode::kFailedPrecondition);
    EXPECT_TRUE(seq.block_table(0).empty()) << "not before Restart()";
    EXPECT_EQ(seq.Restart(), usable);
    EXPECT_EQ(seq.block_table(1).size(), usable / kBlock);
    EXPECT_EQ(seq.load_time().count(), 0) << "not a load to learn from";
    AppendTokens(seq, spec_, tokens_, usable, 200);
    for (int layer = 0; layer < 3; ++layer) {
      uint32_t held = 0;
      for (const BlockTableEntry& entry : seq.block_table(layer)) held += entry.tokens;
      EXPECT_EQ(held, 200u);
    }
  }

  TempDirectory directory_;
  BadDaemon daemon_{directory_.address()};
  Client client_{{.address = directory_.address()}};
  SpaceSpec spec_ = SmallSpace(MlxAffine(8, 64, Dtype::kF16));
  Result<Space> space_;
  const std::vector<uint32_t> tokens_ = Tokens(200, 1);
};

TEST_F(BadDaemonTest, GoodPagesAreTaken) {
  Sequence seq = Begin();
  EXPECT_EQ(seq.WaitAll(), 192u);
  EXPECT_EQ(seq.block_table(1)[2].units[0], std::byte{1 + 16 + 2});
}

TEST_F(BadDaemonTest, AHangingLookUpEndsAtItsDeadline) {
  daemon_.hang_on_acquire = true;
  const auto asked = steady_clock::now();
  const Sequence seq = space_.value().Begin(tokens_, {.deadline = milliseconds(50)});
  EXPECT_LT(steady_clock::now() - asked, milliseconds(5'000));
  EXPECT_GE(steady_clock::now() - asked, milliseconds(49));
  EXPECT_EQ(seq.restorable_tokens(), 0u);
  EXPECT_EQ(seq.match().status.code, StatusCode::kDeadline);
}

TEST_F(BadDaemonTest, AHangingLoadEndsAtItsDeadline) {
  daemon_.hang_on_fetch = true;
  const auto asked = steady_clock::now();
  Sequence seq = space_.value().Begin(
      tokens_, {.deadline = milliseconds(20'000), .load_deadline = milliseconds(300)});
  EXPECT_EQ(seq.match().restorable_tokens, 192u);
  EXPECT_EQ(seq.WaitAll(), 0u);
  EXPECT_LT(steady_clock::now() - asked, milliseconds(10'000));
}

TEST_F(BadDaemonTest, ASequenceLetGoInTheMiddleOfItsLoadDoesNotWait) {
  daemon_.hang_on_fetch = true;
  const auto asked = steady_clock::now();
  { const Sequence seq = Begin(); }
  EXPECT_LT(steady_clock::now() - asked, milliseconds(5'000));
}

TEST_F(BadDaemonTest, AFlippedByteShortensTheMatchToThePagesBeforeIt) {
  daemon_.change_page = [](v1::PageBytes* page) {
    if (page->group() == 1 && page->first_token() == 128) (*page->mutable_data())[1000] ^= 1;
    return true;
  };
  ExpectRestartAt(Begin(), 128);
}

TEST_F(BadDaemonTest, APageBadInTheFirstGroupShortensAllGroupsAlike) {
  daemon_.change_page = [](v1::PageBytes* page) {
    if (page->group() == 0 && page->first_token() == 64) page->set_xxh3(page->xxh3() + 1);
    return true;
  };
  ExpectRestartAt(Begin(), 64);
}

TEST_F(BadDaemonTest, PagesOfWrongShapeAreNotTaken) {
  const std::vector<std::function<void(v1::PageBytes*)>> lies = {
      [](v1::PageBytes* page) { page->set_tokens(63); },
      [](v1::PageBytes* page) { page->set_tokens(0); },
      [](v1::PageBytes* page) { page->set_tokens(~0u); },
      [](v1::PageBytes* page) { page->set_rung(9); },
      [](v1::PageBytes* page) { page->set_page_bytes(page->page_bytes() + 128); },
      [](v1::PageBytes* page) { page->set_offset(128); },
      [](v1::PageBytes* page) { page->set_offset(~uint64_t{0}); },
      [](v1::PageBytes* page) { page->set_first_token(128); },
      [](v1::PageBytes* page) { page->set_group(77); },
      [](v1::PageBytes* page) {
        page->mutable_data()->append(1, 'x');
        page->set_xxh3(base::Xxh3(base::AsBytes(std::string_view(page->data()))));
      },
      [](v1::PageBytes* page) {
        page->clear_data();
        page->set_xxh3(base::Xxh3({}));
      },
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    SCOPED_TRACE(i);
    daemon_.change_page = [&](v1::PageBytes* page) {
      if (page->group() == 1 && page->first_token() == 64) lies[i](page);
      return true;
    };
    ExpectRestartAt(Begin(), 64);
  }
}

TEST_F(BadDaemonTest, AStreamThatBreaksOffLeavesWhatIsWhole) {
  daemon_.change_page = [](v1::PageBytes* page) {
    return page->group() == 0 || page->first_token() < 128;
  };
  ExpectRestartAt(Begin(), 128);
}

TEST_F(BadDaemonTest, AnAnswerThatDoesNotFitTheRequestIsAMiss) {
  const std::vector<std::function<void(v1::AcquireReply*)>> lies = {
      [](v1::AcquireReply* reply) { reply->clear_answers(); },
      [](v1::AcquireReply* reply) { reply->set_epoch(2); },
      [](v1::AcquireReply* reply) { reply->mutable_answers(0)->set_restorable_tokens(201); },
      [](v1::AcquireReply* reply) { reply->mutable_answers(0)->mutable_pages()->RemoveLast(); },
      [](v1::AcquireReply* reply) { reply->mutable_answers(0)->mutable_pages(1)->set_group(7); },
      [](v1::AcquireReply* reply) { reply->mutable_answers(0)->mutable_pages(1)->set_group(0); },
      [](v1::AcquireReply* reply) { reply->mutable_answers(0)->mutable_pages(1)->set_rung(2, 3); },
      [](v1::AcquireReply* reply) { reply->mutable_answers(0)->mutable_pages(1)->clear_rung(); },
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    SCOPED_TRACE(i);
    daemon_.change_answer = lies[i];
    Sequence seq = Begin();
    EXPECT_EQ(seq.WaitAll(), 0u);
    EXPECT_FALSE(seq.match().status.ok());
    AppendTokens(seq, spec_, tokens_, 0, 200);
  }
}

}  // namespace
}  // namespace prefixd
