// A router's index over restarts and kills of the real daemon.
#include <random>

#include "tests/daemon/event_index.h"
#include "tests/daemon/program_fixture.h"

namespace prefixd::testing {
namespace {

class EventsRestartTest : public ProgramTest {
 protected:
  // How many whole blocks from the first one on the index has, by parents and tokens.
  static uint32_t RestorableBlocks(const EventIndex& index, const Tokens& tokens) {
    std::map<std::string, std::vector<v1::StoredBlock>> by_parent;
    for (const auto& [name, bytes] : index.blocks()) {
      v1::StoredBlock block;
      EXPECT_TRUE(block.ParseFromString(bytes));
      by_parent[block.parent_hash()].push_back(block);
    }
    std::string parent;
    for (uint32_t count = 0;; ++count) {
      const size_t begin = size_t{16} * count;
      const v1::StoredBlock* next = nullptr;
      for (const v1::StoredBlock& block : by_parent[parent]) {
        const bool is = block.tokens() == 16 && begin + 16 <= tokens.size() &&
                        std::equal(block.token_ids().begin(), block.token_ids().end(),
                                   tokens.begin() + static_cast<long>(begin),
                                   tokens.begin() + static_cast<long>(begin + 16));
        if (is && block.first_token() == begin) next = &block;
      }
      if (next == nullptr) return count;
      parent = std::string(next->block_hash());
    }
  }
  uint32_t Restorable(Worker& worker, uint64_t space, const Tokens& tokens) {
    Context context;
    v1::AcquireReply reply;
    EXPECT_TRUE(worker.cache->Match(&context, worker.AcquireOf(space, tokens), &reply).ok());
    return reply.answers_size() == 1 ? reply.answers(0).restorable_tokens() : 0;
  }
  Tokens NewTokens() {
    Tokens tokens;
    if (!stored_.empty() && random_() % 2 == 0) {
      tokens = stored_[random_() % stored_.size()];
      tokens.resize(random_() % tokens.size());
    }
    const Tokens more = SomeTokens(random_(), 1 + random_() % 200);
    tokens.insert(tokens.end(), more.begin(), more.end());
    return tokens;
  }

  std::mt19937 random_{26};
  std::vector<Tokens> stored_;
};

// PREFIXD_EVENT_RESTARTS sets how many; the issue asks for 50.
TEST_F(EventsRestartTest, S5AnIndexBuiltFromEventsIsTheDaemonsOverRestartsAndKills) {
  const char* const wanted = std::getenv("PREFIXD_EVENT_RESTARTS");
  const int restarts = wanted == nullptr ? 6 : std::atoi(wanted);
  const std::vector<std::string> args = Plus(Args(), "--load-wait", "0s");
  v1::WatchEventsRequest request;
  request.set_with_tokens(true);
  EventIndex index;
  uint64_t snapshots = 0, compared = 0;
  for (int life = 0; life <= restarts; ++life) {
    const pid_t pid = Start(args);
    ASSERT_TRUE(Serves());
    Worker worker(target());
    index.Connect(worker.admin.get(), request, true);  // what it had is of another epoch
    ASSERT_TRUE(index.UntilWhole());
    EXPECT_EQ(index.snapshots(), ++snapshots);
    ASSERT_TRUE(index.Until([&] { return !index.place_unlocked().loading; }));
    worker.Attach();
    const block::SpaceIdentity identity = SmallIdentity();
    v1::OpenSpaceReply space;
    ASSERT_TRUE(worker.OpenSpace(identity, &space).ok());
    for (int i = 0; i < 8; ++i) {
      stored_.push_back(NewTokens());
      v1::CommitReply reply;
      ASSERT_TRUE(worker.Store(identity, space.space(), stored_.back(), &reply).ok());
      if (random_() % 40 != 0) continue;
      Context context;
      v1::ClearReply cleared;
      ASSERT_TRUE(worker.admin->Clear(&context, {}, &cleared).ok());
    }
    ASSERT_TRUE(EqualsDump(index, worker.admin.get(), request)) << "life " << life;
    for (const Tokens& tokens : stored_) {
      const uint32_t restorable = Restorable(worker, space.space(), tokens);
      ASSERT_EQ(RestorableBlocks(index, tokens), restorable / 16) << "life " << life;
      compared += restorable / 16;
    }
    worker.Detach();
    const bool kill = random_() % 2 == 0;
    ::kill(pid, kill ? SIGKILL : SIGTERM);
    Wait(pid);
    index.Wait();
  }
  EXPECT_GT(compared, 50u * static_cast<uint64_t>(restarts));
}

}  // namespace
}  // namespace prefixd::testing
