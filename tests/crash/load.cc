#include "tests/crash/load.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "bench/common/mix.h"
#include "bench/common/partner.h"

namespace prefixd::bench {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint32_t kFamilies = 24, kBranches = 12;
constexpr size_t kHeld = 3;  // sequences that a worker keeps leased

struct Held {
  ForkedName name;
  Sequence sequence;
};

class CrashWorker {
 public:
  CrashWorker(const std::string& address, uint64_t seed, SharedCounts counts)
      : counts_(std::move(counts)),
        random_(seed),
        universe_(CrashUniverse()),
        client_({.address = address,
                 .name = absl::StrCat("crash-", seed),
                 .staging_bytes = uint64_t{4} << 20}) {}

  bool Run() {
    Result<Space> space = client_.OpenSpace(SpecOf(CrashGeometry()));
    if (!space.ok()) return false;
    space_ = std::move(space.value());
    while (!ParentWaits()) One();
    while (!held_.empty()) LetGo();
    return true;
  }

 private:
  // Skewed: some families are hot, most are cold.
  const ForkedName& Pick() {
    const uint64_t family = std::min(random_() % kFamilies, random_() % kFamilies);
    return universe_[family * kBranches + random_() % kBranches];
  }
  void Compare(const ForkedName& name, uint32_t tokens, const Sequence& sequence,
               const char* when) {
    if (pattern_.Matches(name, tokens, sequence)) return;
    if (counts_->wrong.fetch_add(1) == 0) {
      std::snprintf(counts_->first_wrong, sizeof(counts_->first_wrong),
                    "%s: family %u branch %u, wrong bytes in %u of %u tokens", when, name.family,
                    name.branch, tokens, name.tokens);
    }
  }
  void One() {
    const ForkedName& name = Pick();
    const std::vector<uint32_t> tokens = TokensOf(name);
    Sequence sequence =
        space_.Begin(tokens, {.deadline = seconds(2),
                              .load_deadline = seconds(5),
                              .wait_pending = milliseconds(random_() % 4 == 0 ? 20 : 0)});
    const uint32_t expected = sequence.restorable_tokens();
    uint32_t cached = sequence.WaitAll();
    if (cached < expected) cached = sequence.Restart();
    Compare(name, cached, sequence, "read");
    counts_->requested_tokens += name.tokens;
    counts_->cached_tokens += cached;
    if (sequence.match().in_place) counts_->in_place_tokens += cached;
    if (!sequence.match().status.ok()) ++counts_->refused;
    const bool written = pattern_.Write(name, cached, &sequence).ok();
    if (written) Commit(name, &sequence);
    ++counts_->operations;
    if (written && random_() % 2 == 0) held_.push_back({name, std::move(sequence)});
    if (held_.size() > kHeld) LetGo();
  }
  void Commit(const ForkedName& name, Sequence* sequence) {
    const Result<CommitInfo> stored =
        sequence->Commit({.sequence_end = true, .deadline = seconds(5)});
    if (stored.ok()) {
      counts_->committed_tokens += stored.value().stored_tokens;
    } else {
      ++counts_->refused;
    }
    Compare(name, name.tokens, *sequence, "after commit");
  }
  // What was leased is read once more: daemons may have died since.
  void LetGo() {
    Held& oldest = held_.front();
    Compare(oldest.name, oldest.name.tokens, oldest.sequence, "held");
    ++counts_->outlived;
    oldest.sequence.Release({.used_tokens = oldest.name.tokens});
    held_.pop_front();
  }

  const SharedCounts counts_;
  std::mt19937_64 random_;
  const std::vector<ForkedName> universe_;
  const ForkedPattern pattern_{CrashGeometry()};
  Client client_;
  Space space_;
  std::deque<Held> held_;
};

}  // namespace

const Geometry& CrashGeometry() {
  static const Geometry geometry{.model = "crash", .layers = 3, .kv_heads = 2, .dim = 64};
  return geometry;
}

std::vector<ForkedName> CrashUniverse() {
  std::vector<ForkedName> universe;
  for (uint32_t family = 0; family < kFamilies; ++family) {
    const auto shared = static_cast<uint32_t>(64 + Mix(family) % 640);
    for (uint32_t branch = 0; branch < kBranches; ++branch) {
      const auto own = static_cast<uint32_t>(16 + Mix(family * 1000 + branch) % 448);
      universe.push_back(
          {.family = family, .branch = branch, .shared_tokens = shared, .tokens = shared + own});
    }
  }
  return universe;
}

void SharedCounts::Unmap::operator()(CrashCounts* counts) const {
  ::munmap(counts, sizeof(CrashCounts));
}

absl::StatusOr<SharedCounts> SharedCounts::Map(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* memory = MAP_FAILED;
  if (file >= 0 && ::ftruncate(file, sizeof(CrashCounts)) == 0) {
    memory = ::mmap(nullptr, sizeof(CrashCounts), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (file >= 0) ::close(file);
  if (memory == MAP_FAILED) return absl::InternalError(absl::StrCat("counts: cannot map ", path));
  return SharedCounts(static_cast<CrashCounts*>(memory));
}

int RunCrashWorker(const std::string& plan) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const nlohmann::json json = nlohmann::json::parse(plan, nullptr, false);
  if (!json.is_object()) return 2;
  absl::StatusOr<SharedCounts> counts = SharedCounts::Map(json.at("counts"));
  if (!counts.ok()) return 2;
  CrashWorker worker(json.at("address"), json.at("seed"), *std::move(counts));
  return worker.Run() ? 0 : 1;
}

}  // namespace prefixd::bench
