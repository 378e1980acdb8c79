// prefixd may be killed between any two instructions. A child writes what it shares with the next
// daemon one instruction at a time; after each, everything is looked at as that daemon would.
#include <sys/auxv.h>
#include <sys/ptrace.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "ram/records.h"
#include "ram/slots.h"
#include "ram/space_table.h"
#include "tests/ram/shared_arena.h"

namespace prefixd::ram {
namespace {

using testing::IsSubsetOf;

// Runs `body` in a child and calls `look` before it, and after each of its instructions. Returns
// how many they were; 0 if nobody may trace here.
int64_t StepThrough(const std::function<void()>& body, const std::function<void()>& look) {
  constexpr int kNotTraced = 77;
  const pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0 || raise(SIGSTOP) != 0) _exit(kNotTraced);
    body();
    _exit(0);
  }
  int status = 0;
  int64_t steps = 0;
  for (waitpid(child, &status, 0); WIFSTOPPED(status); waitpid(child, &status, 0), ++steps) {
    look();
    if (testing::Test::HasFailure() || ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) != 0) {
      kill(child, SIGKILL);
    }
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotTraced) return 0;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  return steps;
}

// Different values that were seen.
class Seen {
 public:
  void Add(const void* bytes, size_t count) {
    if (last_.size() == count && std::memcmp(last_.data(), bytes, count) == 0) return;
    last_.assign(static_cast<const char*>(bytes), count);
    values_.insert(last_);
  }
  const std::set<std::string>& values() const { return values_; }

 private:
  std::string last_;
  std::set<std::string> values_;
};
template <typename T>
std::string BytesOf(const T& record) {
  return {reinterpret_cast<const char*>(&record), sizeof(record)};
}

class KillPointsTest : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "its threads do not survive fork";
#endif
#if defined(__aarch64__)
    if ((getauxval(AT_HWCAP) & HWCAP_ATOMICS) == 0) {
      GTEST_SKIP() << "a step between a load-exclusive and its store undoes it, again and again";
    }
#endif
    const int64_t steps = StepThrough([] {}, [] {});
    if (steps == 0) GTEST_SKIP() << "no process may trace another here";
  }

  const block::PageRecord& RecordOf(block::Extent extent) const {
    return *reinterpret_cast<const block::PageRecord*>(
        reinterpret_cast<const std::byte*>(arena_->marks(extent)) -
        offsetof(block::PageRecord, marks));
  }

  // The spaces that a daemon finds: by id, their generation, place and identity.
  std::map<block::SpaceId, std::string> SpacesIn(std::vector<std::byte> table) const {
    SpaceTable spaces(table.data(), table.size());
    EXPECT_TRUE(spaces.Adopt([](uint64_t) { return absl::OkStatus(); }).ok());
    std::map<block::SpaceId, std::string> found;
    for (const auto& [id, place] : spaces.places()) {
      found[id] = std::to_string(spaces.At(place)->generation) + " at " + std::to_string(place) +
                  ": " + spaces.IdentityOf(place);
    }
    return found;
  }
  std::vector<std::byte> Table() const {
    const block::ArenaHeader& header = *arena_->header();
    const auto* const table = reinterpret_cast<const std::byte*>(&header) + header.spaces_offset;
    return {table, table + block::kExtentUnit};  // as much as has memory
  }
  // Whoever follows has the spaces as they were before `change` or as they are after it.
  void ExpectOldOrNewSpaces(const std::function<void()>& change) {
    std::vector<std::map<block::SpaceId, std::string>> found;
    std::vector<std::byte> last;
    EXPECT_GT(StepThrough(change,
                          [&] {
                            const std::vector<std::byte> table = Table();
                            if (table == last) return;
                            last = table;
                            const auto spaces = SpacesIn(table);
                            if (found.empty() || found.back() != spaces) found.push_back(spaces);
                          }),
              100);
    EXPECT_EQ(found.size(), 2u) << "one change, at one instruction";
    arena_.reset();
    arena_ = OpenOrDie(path_);  // what the child changed it has in the file alone
  }

  const ArenaPath path_;
  std::unique_ptr<Arena> arena_ = OpenOrDie(path_);
};

TEST_F(KillPointsTest, APublishedRecordIsTheOldPagesOrTheNewOnesAndWhole) {
  const uint32_t space = arena_->AddSpace(SpaceIdOf(1), "one").value();
  const block::Extent extent = Store(*arena_, space, 2, 16 * kKiB);
  const block::PageRecord& record = RecordOf(extent);
  const std::string old = BytesOf(record);
  Seen published;
  const TestPage next = MakePage(7, space, 16 * kKiB);
  EXPECT_GT(StepThrough([&] { arena_->Publish(extent, next.content); },
                        [&] {
                          if (record.state == 0) return;
                          published.Add(&record, sizeof(record));
                        }),
            1000);
  EXPECT_EQ(record.page_check, next.content.check);
  EXPECT_EQ(record.check, RecordCheck(record));
  EXPECT_EQ(published.values(), (std::set{old, BytesOf(record)}));
}

TEST_F(KillPointsTest, AnExtentThatIsFreedNamesNoPageBeforeAnotherCanHaveIt) {
  const uint32_t space = arena_->AddSpace(SpaceIdOf(1), "one").value();
  const block::Extent extent = Store(*arena_, space, 2, 16 * kKiB);
  Store(*arena_, space, 3, 16 * kKiB);  // an empty slab's records would be made anew
  const block::PageRecord& record = RecordOf(extent);
  const uint64_t first_word = *reinterpret_cast<const uint64_t*>(arena_->data(extent));
  const auto use_anew = [&] {
    arena_->Free(extent);
    const block::Extent again = arena_->Allocate(16 * kKiB, 16 * kKiB).value();
    FillPayload(*arena_, again, 9);
  };
  EXPECT_GT(StepThrough(use_anew,
                        [&] {
                          if (record.state == 0) return;
                          const std::byte* const payload = arena_->data(extent);
                          EXPECT_EQ(*reinterpret_cast<const uint64_t*>(payload), first_word);
                        }),
            1000);
  EXPECT_TRUE(HasPayload(arena_->data(extent), extent.bytes, 9)) << "the same extent was given out";
}

TEST_F(KillPointsTest, NoReaderIsEverMissingFromTheHolders) {
  const uint32_t space = arena_->AddSpace(SpaceIdOf(1), "one").value();
  block::PageMarks* const marks = arena_->marks(Store(*arena_, space, 2, 16 * kKiB));
  constexpr uint64_t kOld = 0b1010, kNew = 0b0110, kAll = ~uint64_t{0};
  marks->SetHolders(kOld);
  std::set<uint64_t> read;
  EXPECT_GT(
      StepThrough([&] { marks->SetHolders(kNew); }, [&] { read.insert(marks->ReadHolders()); }), 0);
  EXPECT_EQ(read, (std::set{kOld, kNew, kAll}));
}

TEST_F(KillPointsTest, ASlotNamesTheOldSessionOrTheNewOneAndNoMixture) {
  base::Digest256 keys[3];
  for (uint8_t i = 0; i < 3; ++i) keys[i] = KeyHash(SessionKey{std::byte{i}});
  Slots slots(arena_.get());
  const uint32_t slot = slots.Claim(keys[0]).value();
  slots.SetOwner(slot, {.pid = 4711, .uid = 7, .pid_namespace = 99});
  const block::SlotRecord& record = arena_->slot_records()[slot];
  const std::vector<std::function<void()>> changes = {
      [&] { slots.Rename(slot, keys[1]); },
      [&] { slots.SetOwner(slot, {.pid = 815, .uid = 8, .pid_namespace = 98}); },
      [&] { slots.Release(slot); },
  };
  for (const auto& change : changes) {
    const std::string old = BytesOf(record);
    Seen in_use;
    EXPECT_GT(StepThrough(change,
                          [&] {
                            if (record.in_use == 1) in_use.Add(&record, sizeof(record));
                          }),
              100);
    EXPECT_THAT(in_use.values(), IsSubsetOf({old, BytesOf(record)}));
  }
  EXPECT_EQ(record.in_use, 0u) << "released";
}

TEST_F(KillPointsTest, ASpaceIsAddedForgottenAndClearedAtOneInstruction) {
  const uint32_t one = arena_->AddSpace(SpaceIdOf(1), "one").value();
  const uint32_t two = arena_->AddSpace(SpaceIdOf(2), std::string(200, 't')).value();
  arena_->AddSpace(SpaceIdOf(3), "three").value();
  ExpectOldOrNewSpaces(
      [&] { EXPECT_TRUE(arena_->AddSpace(SpaceIdOf(4), "four, at the end").ok()); });
  ExpectOldOrNewSpaces([&] { arena_->ClearSpace(one); });
  arena_->RemoveSpace(two);
  ExpectOldOrNewSpaces([&] { EXPECT_TRUE(arena_->AddSpace(SpaceIdOf(5), "in two's room").ok()); });
  ExpectOldOrNewSpaces([&] { arena_->RemoveSpace(one); });
}

}  // namespace
}  // namespace prefixd::ram
