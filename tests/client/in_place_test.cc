// Hits read in place, with a daemon that a test plays: what is ready when, what fails where, what
// is no arena of ours.
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"

#include "base/descriptor.h"
#include "os/memory.h"
#include "tests/client/played_daemon.h"

namespace prefixd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr uint32_t kGroups = 2;

class InPlaceTest : public testing::Test {
 protected:
  InPlaceTest() {
    daemon_.change_attached = [](v1::Attached* attached) {
      attached->set_key("0123456789abcdef");
      attached->set_arena(true);
      attached->set_arena_file_bytes(PlayedArena::kFileBytes);
      attached->set_arena_data_offset(PlayedArena::kDataOffset);
      attached->set_arena_version(block::kArenaVersion);
      attached->set_fd_socket("prefixd.fd");
    };
    daemon_.change_answer = [this](v1::AcquireReply* reply) {
      for (v1::GroupPages& pages : *reply->mutable_answers(0)->mutable_pages()) {
        pages.set_ready(ready_[pages.group()]);
        for (uint32_t b = 0; b < 3 && offsets_known_; ++b) {
          pages.add_offset(PlayedDaemon::OffsetOf(pages.group(), b));
        }
      }
      if (on_answer_) on_answer_(reply);
    };
    for (uint32_t group = 0; group < kGroups; ++group) {
      for (uint32_t b = 0; b < 3; ++b) {
        std::memset(arena_.data() + PlayedDaemon::OffsetOf(group, b),
                    static_cast<int>(1 + group * 16 + b), 64 << 10);
      }
    }
  }
  void Open(ClientOptions options = {}) {
    options.address = directory_.address();
    client_.emplace(options);
    space_ = client_->OpenSpace(spec_);
    ASSERT_TRUE(space_.ok()) << space_.status.message;
    ASSERT_TRUE(client_->attached());
  }
  Sequence Begin(milliseconds load_deadline = milliseconds(20'000)) {
    return space_.value().Begin(tokens_,
                                {.deadline = milliseconds(20'000), .load_deadline = load_deadline});
  }
  void ExpectNotMapped(const std::string& why) {
    EXPECT_EQ(client_->arena().data, nullptr);
    EXPECT_NE(client_->arena().why_not.find(why), std::string::npos) << client_->arena().why_not;
    Sequence seq = Begin();
    EXPECT_EQ(seq.WaitAll(), 192u) << "fetched all the same";
    EXPECT_FALSE(seq.match().in_place);
    EXPECT_EQ(seq.block_table(1)[2].arena_offset, ~uint64_t{0});
    EXPECT_EQ(seq.block_table(1)[2].units[0], std::byte{1 + 16 + 2});
  }

  TempDirectory directory_;
  PlayedArena arena_;
  std::vector<bool> ready_ = {true, true};
  bool offsets_known_ = true;
  std::function<void(v1::AcquireReply*)> on_answer_;
  std::function<std::vector<int>()> files_ = [this] {
    return std::vector<int>{arena_.OpenReadOnly(), arena_.OpenReadOnly()};
  };
  std::unique_ptr<PlayedFdSocket> fd_socket_ = std::make_unique<PlayedFdSocket>(
      std::filesystem::path(directory_.socket()).replace_extension("fd").string(),
      [this] { return files_(); });
  PlayedDaemon daemon_{directory_.address()};
  std::optional<Client> client_;
  SpaceSpec spec_ = SmallSpace(MlxAffine(8, 64, Dtype::kF16));
  Result<Space> space_;
  const std::vector<uint32_t> tokens_ = Tokens(200, 1);
};

TEST_F(InPlaceTest, TheTablesOfAHitPointIntoTheMapping) {
  Open();
  const ArenaInfo arena = client_->arena();
  ASSERT_NE(arena.data, nullptr) << arena.why_not;
  Sequence seq = Begin();
  EXPECT_TRUE(seq.match().in_place);
  EXPECT_EQ(seq.WaitAll(), 192u);
  EXPECT_GT(seq.load_time().count(), 0);
  for (int layer = 0; layer < 3; ++layer) {
    const auto group = static_cast<uint32_t>(layer % 2);  // layers 0 and 2 are one group
    const auto table = seq.block_table(layer);
    ASSERT_EQ(table.size(), 3u);
    for (uint32_t b = 0; b < 3; ++b) {
      EXPECT_EQ(table[b].units, arena.data + table[b].arena_offset);
      EXPECT_GE(table[b].arena_offset, PlayedDaemon::OffsetOf(group, b));
      EXPECT_EQ(table[b].units[0], std::byte{static_cast<uint8_t>(1 + group * 16 + b)});
    }
  }
  EXPECT_LT(seq.block_table(0)[0].arena_offset, seq.block_table(2)[0].arena_offset);
  EXPECT_GT(seq.in_place_bytes(), 0u);
  AppendTokens(seq, spec_, tokens_, 192, 200);
  EXPECT_EQ(seq.block_table(0)[3].arena_offset, ~uint64_t{0}) << "the tail is private";
}

TEST_F(InPlaceTest, AMappingCannotBeMadeWritable) {
  Open();
  const ArenaInfo arena = client_->arena();
  ASSERT_NE(arena.data, nullptr);
  void* page = const_cast<std::byte*>(arena.data);
  EXPECT_NE(mprotect(page, 4096, PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(errno, EACCES);
}

TEST_F(InPlaceTest, AGroupIsReadWhenTheStreamSaysReady) {
  ready_ = {true, false};
  Open();
  Sequence seq = Begin();
  EXPECT_EQ(seq.Wait(0), 192u);
  EXPECT_EQ(seq.block_table(0).size(), 3u) << "layer 0 runs while layer 1 loads";
  std::promise<uint32_t> waited;
  std::thread engine([&] { waited.set_value(seq.Wait(1)); });
  auto result = waited.get_future();
  EXPECT_EQ(result.wait_for(milliseconds(30)), std::future_status::timeout);
  daemon_.TellReady(1);
  EXPECT_EQ(result.get(), 192u);
  engine.join();
  EXPECT_EQ(seq.block_table(1)[2].units[0], std::byte{1 + 16 + 2});
}

TEST_F(InPlaceTest, OffsetsThatTheAnswerDidNotKnowComeWithTheEvent) {
  ready_ = {false, false};
  offsets_known_ = false;
  Open();
  Sequence seq = Begin();
  daemon_.TellReady(0, true);
  daemon_.TellReady(1, true);
  EXPECT_EQ(seq.WaitAll(), 192u);
  EXPECT_EQ(seq.block_table(1)[2].units[0], std::byte{1 + 16 + 2});
}

TEST_F(InPlaceTest, AnEventThatOvertakesTheAnswerIsNotLost) {
  ready_ = {false, false};
  Open();
  on_answer_ = [this](v1::AcquireReply*) {
    daemon_.TellReady(0);
    daemon_.TellReady(1);
    daemon_.WaitTold();  // the answer leaves after them
  };
  Sequence seq = Begin(milliseconds(5'000));
  EXPECT_EQ(seq.WaitAll(), 192u);
}

// LeaseFailed forced at every group, at every length.
TEST_F(InPlaceTest, AFailureInAnyGroupRestartsShorter) {
  ready_ = {false, false};
  Open();
  for (uint32_t group = 0; group < kGroups; ++group) {
    for (uint32_t usable : {0u, 64u, 128u}) {
      SCOPED_TRACE(group);
      SCOPED_TRACE(usable);
      Sequence seq = Begin();
      EXPECT_EQ(seq.match().restorable_tokens, 192u);
      if (group == 1) daemon_.TellReady(0);
      daemon_.TellFailed(group, usable);
      for (uint32_t g = group; usable > 0 && g < kGroups; ++g) daemon_.TellReady(g);
      EXPECT_EQ(seq.WaitAll(), usable);
      const std::vector<float> row(1024);
      EXPECT_EQ(seq.Append(0, 192, 1, {row.data()}, {row.data()}).code,
                StatusCode::kFailedPrecondition);
      EXPECT_TRUE(seq.block_table(0).empty()) << "not before Restart()";
      EXPECT_EQ(seq.Restart(), usable);
      EXPECT_EQ(seq.block_table(1).size(), usable / kBlock);
      EXPECT_EQ(seq.load_time().count(), 0) << "not a load to learn from";
      AppendTokens(seq, spec_, tokens_, usable, 200);
      uint32_t held = 0;
      for (const BlockTableEntry& entry : seq.block_table(1)) held += entry.tokens;
      EXPECT_EQ(held, 200u);
    }
  }
}

TEST_F(InPlaceTest, AGroupThatNeverBecomesReadyEndsAtTheLoadDeadline) {
  ready_ = {true, false};
  Open();
  const auto asked = steady_clock::now();
  Sequence seq = Begin(milliseconds(200));
  EXPECT_EQ(seq.WaitAll(), 0u);
  EXPECT_GE(steady_clock::now() - asked, milliseconds(199));
  EXPECT_LT(steady_clock::now() - asked, milliseconds(10'000));
}

TEST_F(InPlaceTest, WhenTheSessionBreaksAnUnreadyLoadEndsAndAReadyOneStays) {
  ready_ = {true, true};
  Open();
  Sequence whole = Begin();
  ASSERT_EQ(whole.WaitAll(), 192u);
  ready_ = {true, false};
  Sequence half = Begin();
  const auto asked = steady_clock::now();
  daemon_.EndSessions();
  EXPECT_EQ(half.WaitAll(), 0u);
  EXPECT_LT(steady_clock::now() - asked, milliseconds(10'000));
  EXPECT_EQ(whole.WaitAll(), 192u);
  EXPECT_EQ(whole.block_table(1)[2].units[0], std::byte{1 + 16 + 2});
}

TEST_F(InPlaceTest, PlacesOutsideTheArenaAreNotRead) {
  const std::vector<std::function<void(v1::GroupPages*)>> lies = {
      [](v1::GroupPages* pages) { pages->set_offset(1, ~uint64_t{0}); },
      [](v1::GroupPages* pages) { pages->set_offset(1, PlayedArena::kFileBytes); },
      [](v1::GroupPages* pages) {
        pages->set_offset(1, PlayedArena::kFileBytes - PlayedArena::kDataOffset - 128);
      },
      [](v1::GroupPages* pages) { pages->set_offset(1, 64); },
      [](v1::GroupPages* pages) { pages->set_page_tokens(1, 63); },
      [](v1::GroupPages* pages) { pages->set_page_tokens(1, ~0u); },
      [](v1::GroupPages* pages) { pages->set_rung(1, 3); },
  };
  Open();
  for (size_t i = 0; i < lies.size(); ++i) {
    SCOPED_TRACE(i);
    on_answer_ = [&](v1::AcquireReply* reply) {
      lies[i](reply->mutable_answers(0)->mutable_pages(1));
    };
    EXPECT_EQ(Begin().WaitAll(), 64u);
  }
  on_answer_ = [](v1::AcquireReply* reply) {
    reply->mutable_answers(0)->mutable_pages(1)->mutable_offset()->RemoveLast();
  };
  EXPECT_EQ(Begin().WaitAll(), 0u);
}

TEST_F(InPlaceTest, NoArenaWhenItIsNotWanted) {
  Open({.use_arena = false});
  ExpectNotMapped("use_arena");
  EXPECT_FALSE(daemon_.attaches()[0].wants_arena());
}

TEST_F(InPlaceTest, NoArenaOfAnotherVersionSizeOrCheck) {
  const std::vector<std::function<void(block::ArenaHeader&)>> lies = {
      [](block::ArenaHeader& header) { ++header.version; },
      [](block::ArenaHeader& header) { ++header.magic; },
      [](block::ArenaHeader& header) { header.file_bytes += 4096; },
      [](block::ArenaHeader& header) { header.data_offset += 4096; },
  };
  for (const auto& lie : lies) {
    const block::ArenaHeader& header = arena_.header();
    const uint64_t magic = header.magic, bytes = header.file_bytes, offset = header.data_offset;
    lie(arena_.header());
    arena_.Seal();
    Open();
    ExpectNotMapped("arena: ");
    arena_.header().version = block::kArenaVersion;
    arena_.header().magic = magic;
    arena_.header().file_bytes = bytes;
    arena_.header().data_offset = offset;
    arena_.Seal();
  }
  arena_.header().slabs = 7;  // the check is not the header's any more
  Open();
  ExpectNotMapped("arena: ");
}

TEST_F(InPlaceTest, NoArenaWhenTheSideSocketGivesNothingUseful) {
  fd_socket_->change_key = [](std::string* key) { (*key)[0] ^= 1; };
  Open();
  ExpectNotMapped("descriptors");
  fd_socket_->change_key = [](std::string* key) { *key = "the arena is for others"; };
  files_ = [] { return std::vector<int>{}; };
  Open();
  ExpectNotMapped("the arena is for others");
  fd_socket_->change_key = [](std::string*) {};
  Open();
  ExpectNotMapped("descriptors");
  files_ = [this] { return std::vector<int>{arena_.OpenReadOnly()}; };
  Open();
  ExpectNotMapped("descriptors");
  files_ = [] {
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return std::vector<int>{null, fcntl(null, F_DUPFD_CLOEXEC, 0)};
  };
  Open();
  ExpectNotMapped("arena: ");
  fd_socket_.reset();
  Open();
  ExpectNotMapped("prefixd.fd");
}

TEST_F(InPlaceTest, ADaemonOfTheOtherFlavourOfOsServesByFetch) {
  fd_socket_.reset();
  const std::string path = directory_.socket().substr(0, directory_.socket().rfind('.')) + ".fd";
  ASSERT_EQ(unlink(path.c_str()), 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof(name.sun_path) - 1);
  const int type = os::MessageSocketType() == SOCK_STREAM ? SOCK_SEQPACKET : SOCK_STREAM;
  const base::Descriptor other(os::NewSocket(AF_UNIX, type, 0, os::Waits::kYes));
  ASSERT_EQ(bind(other.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  ASSERT_EQ(listen(other.get(), 8), 0);
  Open();
  ExpectNotMapped("built with different PREFIXD_OS");
}

TEST_F(InPlaceTest, NoArenaWhenTheDaemonSaysSo) {
  daemon_.change_attached = [](v1::Attached* attached) {
    attached->set_why_no_arena("all 64 slots are taken");
  };
  Open();
  ExpectNotMapped("all 64 slots are taken");
}

TEST_F(InPlaceTest, ADaemonOfAnotherArenaVersionServesByFetch) {
  auto change = daemon_.change_attached;
  daemon_.change_attached = [&](v1::Attached* attached) {
    change(attached);
    attached->set_arena_version(block::kArenaVersion + 1);
  };
  Open();
  ExpectNotMapped(absl::StrCat("version ", block::kArenaVersion + 1));
}

TEST_F(InPlaceTest, StagingThatCouldShrinkIsNotUsed) {
  if (!os::SealsMemory()) GTEST_SKIP() << "the system fixes no size: a worker relies on its daemon";
  auto change = daemon_.change_attached;
  daemon_.change_attached = [&](v1::Attached* attached) {
    change(attached);
    attached->set_staging_bytes(1 << 20);
  };
  int seals = 0;
  files_ = [&] {
    const int staging = memfd_create("staging", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(ftruncate(staging, 1 << 20), 0);
    EXPECT_EQ(fcntl(staging, F_ADD_SEALS, seals), 0);
    return std::vector<int>{arena_.OpenReadOnly(), arena_.OpenReadOnly(), staging};
  };
  Open({.staging_bytes = 1 << 20});
  EXPECT_NE(client_->arena().data, nullptr) << "hits stay in place";
  EXPECT_EQ(client_->arena().staging_bytes, 0u);
  seals = F_SEAL_SHRINK | F_SEAL_GROW;
  Open({.staging_bytes = 1 << 20});
  EXPECT_EQ(client_->arena().staging_bytes, 1u << 20);
  EXPECT_EQ(daemon_.attaches().back().staging_bytes(), 1u << 20);
}

// The leases of a session that was cut off are held by the next one, until the last sequence that
// reads them is gone; over any number of sessions.
TEST_F(InPlaceTest, AResumedLeaseIsReleasedWithTheLastSequenceOfTheSessionsBefore) {
  auto change = daemon_.change_attached;
  int sessions = 0;
  daemon_.change_attached = [&](v1::Attached* attached) {
    change(attached);
    attached->set_session(static_cast<uint64_t>(++sessions));
    attached->set_key("0123456789abcde" + std::to_string(sessions));
    if (sessions == 1) return;
    attached->set_resumed(true);
    attached->set_resumed_lease(static_cast<uint64_t>(100 * sessions));
  };
  const auto released = [&](uint64_t lease) {
    const std::vector<uint64_t> all = daemon_.released();
    return std::find(all.begin(), all.end(), lease) != all.end();
  };
  const auto reattach = [&](int session) {
    daemon_.EndSessions();
    const auto end = steady_clock::now() + milliseconds(20'000);
    while (sessions < session && steady_clock::now() < end) std::this_thread::yield();
    ASSERT_TRUE(client_->WaitAttached(milliseconds(20'000)));
  };
  const auto wait_released = [&](uint64_t lease) {
    const auto end = steady_clock::now() + milliseconds(20'000);
    while (!released(lease) && steady_clock::now() < end) std::this_thread::yield();
    return released(lease);
  };
  Open();
  const std::byte* data = client_->arena().data;
  std::optional<Sequence> first = Begin();
  ASSERT_EQ(first->WaitAll(), 192u);
  reattach(2);
  EXPECT_EQ(daemon_.attaches()[1].resume(), "0123456789abcde1");
  EXPECT_EQ(client_->arena().data, data) << "one file, one mapping";
  std::optional<Sequence> second = Begin();
  ASSERT_EQ(second->WaitAll(), 192u);
  reattach(3);
  EXPECT_FALSE(released(200) || released(300));
  second.reset();
  EXPECT_EQ(first->block_table(1)[2].units[0], std::byte{1 + 16 + 2});
  EXPECT_FALSE(released(300)) << "the first still reads";
  first.reset();
  EXPECT_TRUE(wait_released(300));
  EXPECT_FALSE(released(200)) << "of a session that is no more";
}

}  // namespace
}  // namespace prefixd
