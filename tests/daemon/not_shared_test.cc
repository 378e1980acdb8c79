// Models whose caches nobody shares: what a worker says of them, what prefixd notes by itself.
#include "tests/daemon/fixture.h"

namespace prefixd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using Notes = std::map<std::string, std::string>;  // reasons by model

class NotSharedTest : public DaemonTest {
 protected:
  static grpc::Status Say(Worker& worker, const std::string& model, const std::string& reason) {
    v1::NotSharedRequest request;
    request.set_session(worker.session);
    request.set_model(model);
    request.set_reason(reason);
    Context context;
    v1::Ack ack;
    const grpc::Status status = worker.cache->NotShared(&context, request, &ack);
    EXPECT_EQ(ack.epoch(), status.ok() ? worker.epoch : 0);
    return status;
  }
  Notes NotesOf(uint64_t session) {
    Context context;
    v1::ListSessionsReply reply;
    EXPECT_TRUE(worker_->admin->ListSessions(&context, {}, &reply).ok());
    Notes notes;
    for (const v1::ListSessionsReply::Session& listed : reply.sessions()) {
      if (listed.session() != cache_->NameOf({session}).value) continue;
      for (const auto& note : listed.not_shared()) notes[note.model()] = note.reason();
    }
    return notes;
  }
  Notes NotesOf(const Worker& worker) { return NotesOf(worker.session); }
  uint64_t Gauge() { return worker_->Counter("spaces.refused"); }
  block::SpaceIdentity Refused(const std::string& model) const {
    block::SpaceIdentity identity = identity_;
    identity.model = model;
    identity.weights_digest = {};
    return identity;
  }
};

TEST_F(NotSharedTest, WhatAWorkerSaysIsListedWithItsSessionUntilItTakesItBack) {
  EXPECT_EQ(Gauge(), 0u);
  Worker other(target());
  other.Attach("other");
  ASSERT_TRUE(Say(*worker_, "gemma", "its window rotates").ok());
  ASSERT_TRUE(Say(*worker_, "mamba", "unknown states").ok());
  ASSERT_TRUE(Say(other, "gemma", "another reason").ok());
  EXPECT_THAT(NotesOf(*worker_), UnorderedElementsAre(Pair("gemma", "its window rotates"),
                                                      Pair("mamba", "unknown states")));
  EXPECT_THAT(NotesOf(other), UnorderedElementsAre(Pair("gemma", "another reason")));
  EXPECT_EQ(Gauge(), 3u);
  ASSERT_TRUE(Say(*worker_, "gemma", "its window is 0").ok());
  EXPECT_EQ(NotesOf(*worker_)["gemma"], "its window is 0");
  ASSERT_TRUE(Say(*worker_, "gemma", "").ok());
  ASSERT_TRUE(Say(*worker_, "never told", "").ok());
  EXPECT_THAT(NotesOf(*worker_), UnorderedElementsAre(Pair("mamba", "unknown states")));
  EXPECT_EQ(Gauge(), 2u);
  other.Detach();
  EXPECT_TRUE(Eventually([](const v1::GetStatsReply& stats) { return stats.sessions() == 1; }));
  EXPECT_EQ(Gauge(), 1u) << "notes end with their session";
}

TEST_F(NotSharedTest, ARefusedSpaceIsNotedUntilOneOfItsModelOpens) {
  v1::OpenSpaceReply reply;
  const grpc::Status refused = worker_->OpenSpace(Refused("qwen"), &reply);
  ASSERT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(NotesOf(*worker_), UnorderedElementsAre(Pair("qwen", refused.error_message())));
  EXPECT_EQ(Gauge(), 1u);
  worker_->Open(identity_);
  EXPECT_EQ(Gauge(), 1u) << "another model's";
  block::SpaceIdentity right = identity_;
  right.model = "qwen";
  worker_->Open(right);
  EXPECT_EQ(NotesOf(*worker_), Notes());
  EXPECT_EQ(Gauge(), 0u);
}

TEST_F(NotSharedTest, WhatTheWorkerSaidStandsBeforeARefusalAndAnOpening) {
  ASSERT_TRUE(Say(*worker_, "qwen", "said").ok());
  v1::OpenSpaceReply reply;
  const grpc::Status refused = worker_->OpenSpace(Refused("qwen"), &reply);
  EXPECT_EQ(NotesOf(*worker_)["qwen"], "said");
  ASSERT_TRUE(Say(*worker_, "qwen", "").ok());
  EXPECT_EQ(NotesOf(*worker_)["qwen"], refused.error_message());
  ASSERT_TRUE(Say(*worker_, "qwen", "said again").ok());
  block::SpaceIdentity right = identity_;
  right.model = "qwen";
  worker_->Open(right);
  EXPECT_EQ(NotesOf(*worker_)["qwen"], "said again");
  ASSERT_TRUE(Say(*worker_, "qwen", "").ok());
  EXPECT_EQ(Gauge(), 0u);
}

TEST_F(NotSharedTest, ASessionHasNotesOnSixteenModels) {
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(Say(*worker_, "m" + std::to_string(i), "why").ok());
  const grpc::Status full = Say(*worker_, "one more", "why");
  EXPECT_EQ(full.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(full.error_message(), HasSubstr("notes on 16 models, at most 16"));
  EXPECT_TRUE(Say(*worker_, "m3", "another").ok()) << "one that is there";
  v1::OpenSpaceReply reply;
  EXPECT_EQ(worker_->OpenSpace(Refused("one more"), &reply).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(NotesOf(*worker_).size(), 16u);
  ASSERT_TRUE(Say(*worker_, "m3", "").ok());
  EXPECT_TRUE(Say(*worker_, "one more", "why").ok());
  EXPECT_EQ(Gauge(), 16u);
}

TEST_F(NotSharedTest, WhatIsNoNoteIsRefusedByName) {
  const auto expect = [&](const grpc::Status& status, const std::string& says) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(says));
  };
  expect(Say(*worker_, "", "why"), "not_shared: model is empty");
  expect(Say(*worker_, std::string(1025, 'm'), "why"), "model has 1025 bytes, at most 1024");
  expect(Say(*worker_, "m", std::string(1025, 'r')), "reason has 1025 bytes, at most 1024");
  EXPECT_TRUE(Say(*worker_, std::string(1024, 'm'), std::string(1024, 'r')).ok());
  Worker nobody(target());
  EXPECT_EQ(Say(nobody, "m", "why").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Gauge(), 1u);
}

TEST_F(NotSharedTest, ARefusedModelOfAnyNameIsNoted) {
  v1::OpenSpaceReply reply;
  EXPECT_FALSE(worker_->OpenSpace(Refused(""), &reply).ok());
  std::string name(1023, 'm');
  EXPECT_FALSE(worker_->OpenSpace(Refused(name + "\u00e9"), &reply).ok());
  const Notes notes = NotesOf(*worker_);
  EXPECT_EQ(notes.size(), 2u);
  EXPECT_EQ(notes.count("(unnamed)"), 1u);
  EXPECT_EQ(notes.count(name), 1u) << "cut at a character";
}

}  // namespace
}  // namespace prefixd::testing
