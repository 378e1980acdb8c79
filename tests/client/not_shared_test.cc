// A model whose caches are not shared: the daemon hears of it, now or when it comes.
#include <map>
#include <optional>
#include <thread>

#include "tests/client/daemon.h"

namespace prefixd {
namespace {

using Notes = std::map<std::string, std::string>;  // reasons by model

const KvFormat kFormat = MlxAffine(8, 64, Dtype::kF16);

class NotSharedTest : public testing::Test {
 protected:
  void Start() { daemon_.emplace(directory_.socket()); }
  Notes NotesOfSessions() {
    Notes notes;
    for (const block::SessionInfo& session : daemon_->cache().ListSessions()) {
      if (!session.attached) continue;
      for (const block::NotShared& note : session.not_shared) notes[note.model] = note.reason;
    }
    return notes;
  }
  // Asks until the daemon has these; false after 20 s.
  bool Has(const Notes& notes) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (NotesOfSessions() != notes) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }
  SpaceSpec Refused() const {  // by the daemon: no digest
    SpaceSpec spec = SmallSpace(kFormat);
    spec.weights_digest = {};
    return spec;
  }
  SpaceSpec Impossible() const { return SmallSpace(MlxAffine(8, 48, Dtype::kF16)); }

  TempDirectory directory_;
  std::optional<Daemon> daemon_;
};

TEST_F(NotSharedTest, WhatTheEngineSaysIsKnownWhenTheCallReturns) {
  Start();
  Client client({.address = directory_.address()});
  ASSERT_TRUE(client.WaitAttached(std::chrono::seconds(20)));
  EXPECT_TRUE(client.NotShared("gemma", "its window rotates").ok());
  EXPECT_EQ(NotesOfSessions(), (Notes{{"gemma", "its window rotates"}}));
  EXPECT_TRUE(client.NotShared("gemma", "another").ok());
  EXPECT_EQ(NotesOfSessions(), (Notes{{"gemma", "another"}}));
  EXPECT_TRUE(client.NotShared("gemma", "").ok());
  EXPECT_EQ(NotesOfSessions(), Notes());
}

TEST_F(NotSharedTest, ADaemonThatComesLaterOrAgainIsTold) {
  Client client({.address = directory_.address()});
  EXPECT_TRUE(client.NotShared("gemma", "its window rotates").ok()) << "no daemon is no error";
  EXPECT_TRUE(client.NotShared("taken back", "why").ok());
  EXPECT_TRUE(client.NotShared("taken back", "").ok());
  EXPECT_FALSE(client.OpenSpace(Impossible()).ok());
  const std::string sentence = client.OpenSpace(Impossible()).status.message;
  for (int life = 0; life < 2; ++life) {
    Start();
    ASSERT_TRUE(client.WaitAttached(std::chrono::seconds(20)));
    EXPECT_TRUE(Has({{"gemma", "its window rotates"}, {"test", sentence}})) << life;
    daemon_.reset();
  }
}

TEST_F(NotSharedTest, ARefusedSpaceIsNotedUntilOneOfItsModelOpens) {
  Start();
  Client client({.address = directory_.address()});
  for (const SpaceSpec& spec : {Refused(), Impossible()}) {
    const Result<Space> refused = client.OpenSpace(spec);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(NotesOfSessions(), (Notes{{"test", refused.status.message}}));
  }
  EXPECT_TRUE(client.OpenSpace(SmallSpace(kFormat)).ok());
  EXPECT_EQ(NotesOfSessions(), Notes());
  EXPECT_TRUE(client.NotShared("test", "said").ok());
  EXPECT_FALSE(client.OpenSpace(Impossible()).ok());
  EXPECT_TRUE(client.OpenSpace(SmallSpace(kFormat)).ok());
  EXPECT_EQ(NotesOfSessions(), (Notes{{"test", "said"}})) << "the engine's own word";
}

// Opened without a daemon, and refused once there is one.
TEST_F(NotSharedTest, ASpaceThatIsRefusedLaterIsNotedToo) {
  Client client({.address = directory_.address()});
  Result<Space> space = client.OpenSpace(Refused());
  ASSERT_TRUE(space.ok());
  Start();
  ASSERT_TRUE(client.WaitAttached(std::chrono::seconds(20)));
  const Notes notes = NotesOfSessions();
  ASSERT_EQ(notes.count("test"), 1u);
  EXPECT_NE(notes.at("test").find("weights_digest"), std::string::npos);
}

TEST_F(NotSharedTest, TextsAreCutAndModelsAreSixteen) {
  Start();
  Client client({.address = directory_.address()});
  ASSERT_TRUE(client.WaitAttached(std::chrono::seconds(20)));
  EXPECT_EQ(client.NotShared("", "why").code, StatusCode::kInvalidArgument);
  EXPECT_TRUE(client.NotShared(std::string(2000, 'm'), "\xff" + std::string(2000, 'r')).ok());
  EXPECT_EQ(NotesOfSessions(), (Notes{{std::string(1024, 'm'), "?" + std::string(1023, 'r')}}));
  for (int i = 1; i < 16; ++i) EXPECT_TRUE(client.NotShared(std::to_string(i), "why").ok());
  EXPECT_EQ(client.NotShared("one more", "why").code, StatusCode::kExhausted);
  EXPECT_TRUE(client.NotShared("7", "").ok());
  EXPECT_TRUE(client.NotShared("one more", "why").ok());
  EXPECT_EQ(NotesOfSessions().size(), 16u);
  Client moved = std::move(client);
  EXPECT_EQ(client.NotShared("m", "why").code, StatusCode::kFailedPrecondition);
}

TEST_F(NotSharedTest, TheLastWordOfEachThreadArrives) {
  Start();
  Client client({.address = directory_.address()});
  Notes last;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    const std::string model = "model " + std::to_string(i);
    last[model] = "the 99th reason";
    threads.emplace_back([&client, model] {
      for (int n = 0; n < 100; ++n)
        EXPECT_TRUE(client.NotShared(model, "the " + std::to_string(n) + "th reason").ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Has(last));
}

}  // namespace
}  // namespace prefixd
