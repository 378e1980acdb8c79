// A store that hosts share, in this process: keeps bundles in a map, and fails as it is told.
#pragma once
#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "remote/remote_store.h"

namespace prefixd::testing {

class FakeRemoteStore : public remote::RemoteStore {
 public:
  struct Bundle {
    std::string record;
    std::vector<std::string> stripes;
  };

  std::vector<remote::FoundRecord> Find(std::span<const std::string> names,
                                        base::Deadline) override {
    ++finds;
    asked += names.size();
    if (on_find) on_find();
    std::vector<remote::FoundRecord> found(names.size());
    const base::MutexLock lock(mutex_);
    for (size_t i = 0; i < names.size(); ++i) {
      using Outcome = remote::FoundRecord::Outcome;
      if (down || late) found[i].outcome = down ? Outcome::kDown : Outcome::kLate;
      const auto there = bundles_.find(names[i]);
      if (down || late || there == bundles_.end()) continue;
      found[i] = {.outcome = Outcome::kFound, .record = there->second.record};
    }
    return found;
  }
  absl::Status Load(const std::string& name, std::span<const remote::Runs> stripes,
                    base::Deadline) override {
    ++loads;
    const base::MutexLock lock(mutex_);
    while (held_) let_go_.Wait(mutex_);
    if (down) return absl::UnavailableError("fake: down");
    const auto there = bundles_.find(name);
    if (there == bundles_.end()) return absl::NotFoundError("fake: gone");
    if (there->second.stripes.size() != stripes.size()) return absl::NotFoundError("fake: stripes");
    for (size_t i = 0; i < stripes.size(); ++i) {
      const std::string& from = there->second.stripes[i];
      size_t at = 0;
      for (const std::span<std::byte>& run : stripes[i]) {
        if (at + run.size() > from.size()) return absl::DataLossError("fake: another length");
        std::copy_n(std::as_bytes(std::span(from)).subspan(at, run.size()).begin(), run.size(),
                    run.begin());
        at += run.size();
      }
      if (at != from.size()) return absl::DataLossError("fake: another length");
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<bool>> Touch(std::span<const std::string> names,
                                          base::Deadline) override {
    if (down) return absl::UnavailableError("fake: down");
    const base::MutexLock lock(mutex_);
    touched_last = names.size();
    touched += names.size();
    last_touched_name_ = names.back();
    std::vector<bool> there;
    for (const std::string& name : names) there.push_back(bundles_.contains(name));
    return there;
  }
  absl::Status Store(const std::string& name, std::span<const std::byte> record,
                     std::span<const remote::ConstRuns> stripes, base::Deadline) override {
    if (down) return absl::UnavailableError("fake: down");
    const base::MutexLock lock(mutex_);
    Bundle bundle{.record = TextOf(record), .stripes = {}};
    for (const remote::ConstRuns& runs : stripes) {
      std::string& stripe = bundle.stripes.emplace_back();
      for (const std::span<const std::byte>& run : runs) stripe += TextOf(run);
    }
    bundles_[name] = std::move(bundle);
    touched_last = 0;
    ++stores;
    return absl::OkStatus();
  }
  absl::StatusOr<uint64_t> ReadNumber(const std::string& name, base::Deadline) override {
    if (down) return absl::UnavailableError("fake: down");
    const base::MutexLock lock(mutex_);
    return numbers_[name];
  }
  absl::StatusOr<uint64_t> RaiseNumber(const std::string& name, base::Deadline) override {
    if (down || deaf) return absl::UnavailableError("fake: down");
    const base::MutexLock lock(mutex_);
    return ++numbers_[name];
  }
  absl::StatusOr<uint64_t> RestoreNumber(const std::string& name, uint64_t least,
                                         base::Deadline) override {
    if (down || deaf) return absl::UnavailableError("fake: down");
    const base::MutexLock lock(mutex_);
    uint64_t& number = numbers_[name];
    if (number < least) number += least;
    return number;
  }
  // As when the server that has them comes back with nothing; bundles are on others.
  void ForgetNumbers() {
    const base::MutexLock lock(mutex_);
    numbers_.clear();
  }
  absl::Status WritePost(const std::string& board, const remote::Post& post, std::chrono::seconds,
                         base::Deadline) override {
    ++posted;
    if (down) return absl::UnavailableError("fake: down");
    const base::MutexLock lock(mutex_);
    boards_[board][post.field] = post.text;
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<remote::Post>> ReadBoard(const std::string& board,
                                                      base::Deadline) override {
    if (down) return absl::UnavailableError("fake: down");
    const base::MutexLock lock(mutex_);
    std::vector<remote::Post> posts;
    for (const auto& [field, text] : boards_[board]) posts.push_back({field, text});
    return posts;
  }
  // Calls `change(text)` for each text on every board.
  template <typename Change>
  void ForEachPost(Change change) {
    const base::MutexLock lock(mutex_);
    for (auto& [name, board] : boards_) {
      for (auto& [field, text] : board) change(text);
    }
  }
  remote::RemoteStatus Status() const override { return {}; }

  // Loads wait until Release.
  void Hold() {
    const base::MutexLock lock(mutex_);
    held_ = true;
  }
  void Release() {
    const base::MutexLock lock(mutex_);
    held_ = false;
    let_go_.NotifyAll();
  }
  std::string last_touched_name() const {
    const base::MutexLock lock(mutex_);
    return last_touched_name_;
  }
  // Calls `change(name, bundle)` for each bundle, by name; those for which it returns false go.
  template <typename Change>
  void ForEach(Change change) {
    const base::MutexLock lock(mutex_);
    for (auto bundle = bundles_.begin(); bundle != bundles_.end();) {
      bundle = change(bundle->first, bundle->second) ? std::next(bundle) : bundles_.erase(bundle);
    }
  }
  size_t size() const {
    const base::MutexLock lock(mutex_);
    return bundles_.size();
  }

  std::function<void()> on_find;  // called by Find, without a lock
  std::atomic<bool> down{false}, late{false};
  std::atomic<bool> deaf{false};  // it raises no number
  std::atomic<uint64_t> finds{0}, asked{0}, loads{0}, stores{0}, posted{0};
  std::atomic<uint64_t> touched{0};       // names, of all Touches
  std::atomic<uint64_t> touched_last{0};  // names of the last Touch behind the last Store

 private:
  static std::string TextOf(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  mutable base::Mutex mutex_;
  std::string last_touched_name_ PREFIXD_GUARDED_BY(mutex_);
  base::CondVar let_go_;
  bool held_ PREFIXD_GUARDED_BY(mutex_) = false;
  std::map<std::string, Bundle> bundles_ PREFIXD_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> numbers_ PREFIXD_GUARDED_BY(mutex_);
  std::map<std::string, std::map<std::string, std::string>> boards_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::testing
