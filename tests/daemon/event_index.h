// An index that a router builds from WatchEvents, on a thread that reads the stream.
#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "prefixd/v1/admin.grpc.pb.h"

namespace prefixd::testing {

struct EventPlace {
  uint64_t epoch = 0, sequence = 0;
  bool whole = false;
  bool loading = false;
};

class EventIndex {
 public:
  using Name = std::pair<std::string, std::string>;  // space, block hash

  ~EventIndex() { Disconnect(); }

  // Begins to listen. Goes on where it stood, if that was whole and `resume`.
  void Connect(v1::Admin::Stub* admin, v1::WatchEventsRequest request = {}, bool resume = false) {
    Disconnect();
    if (resume && place_.whole) {
      request.set_epoch(place_.epoch);
      request.set_sequence(place_.sequence);
    }
    place_.whole = ended_ = false;  // until the stream says so
    context_ = std::make_unique<grpc::ClientContext>();
    stream_ = admin->WatchEvents(context_.get(), request);
    thread_ = std::thread([this] {
      for (v1::WatchEventsReply reply; stream_->Read(&reply);) Apply(reply);
      const base::MutexLock lock(mutex_);
      ended_ = true;
      changed_.NotifyAll();
    });
  }
  grpc::Status Disconnect() {
    if (context_ == nullptr) return grpc::Status::OK;
    context_->TryCancel();
    return Wait();
  }
  // Waits for the daemon to end the stream.
  grpc::Status Wait() {
    thread_.join();
    const grpc::Status status = stream_->Finish();
    stream_.reset();
    context_.reset();
    return status;
  }

  // False if the stream ended or `done` was not true within 30 s.
  template <typename Done>
  bool Until(Done done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    const base::MutexLock lock(mutex_);
    while (!done()) {
      if (ended_ || !changed_.WaitUntil(mutex_, deadline)) return done();
    }
    return true;
  }
  bool UntilWhole() {
    return Until([this] { return place_.whole; });
  }

  std::map<Name, std::string> blocks() const {
    const base::MutexLock lock(mutex_);
    return blocks_;
  }
  EventPlace place() const {
    const base::MutexLock lock(mutex_);
    return place_;
  }
  // For `done` of Until.
  EventPlace place_unlocked() const { return place_; }
  const std::vector<v1::BlockEvent>& events_unlocked() const { return events_; }
  uint64_t snapshots() const {
    const base::MutexLock lock(mutex_);
    return snapshots_;
  }
  std::vector<v1::BlockEvent> events() const {
    const base::MutexLock lock(mutex_);
    return events_;
  }

 private:
  void Apply(const v1::WatchEventsReply& reply) {
    const base::MutexLock lock(mutex_);
    if (reply.snapshot_begins()) {
      blocks_.clear();
      ++snapshots_;
    } else {
      EXPECT_EQ(reply.epoch(), place_.epoch);
      EXPECT_GE(reply.sequence(), place_.sequence);
    }
    for (const v1::StoredBlock& block : reply.blocks()) Put(block);
    for (const v1::BlockEvent& event : reply.events()) {
      events_.push_back(event);
      const v1::StoredBlock& block = event.block();
      if (event.kind() == v1::BlockEvent::KIND_CLEARED) {
        std::erase_if(blocks_, [&](const auto& it) { return it.first.first == block.space_id(); });
      } else if (event.kind() == v1::BlockEvent::KIND_REMOVED) {
        blocks_.erase({block.space_id(), block.block_hash()});
      } else {
        Put(block);
      }
    }
    place_ = {reply.epoch(), reply.sequence(), reply.whole(), reply.index_loading()};
    changed_.NotifyAll();
  }
  void Put(const v1::StoredBlock& block) {
    blocks_[{block.space_id(), block.block_hash()}] = block.SerializeAsString();
  }

  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReader<v1::WatchEventsReply>> stream_;
  std::thread thread_;
  mutable base::Mutex mutex_;
  base::CondVar changed_;
  std::map<Name, std::string> blocks_;  // the message, in bytes
  std::vector<v1::BlockEvent> events_;
  EventPlace place_;
  uint64_t snapshots_ = 0;
  bool ended_ = false;
};

// Waits until `index` and the daemon's own dump, a snapshot taken now, are of one sequence, and
// returns whether they are equal. What the daemon does in the background comes to an end.
inline ::testing::AssertionResult EqualsDump(EventIndex& index, v1::Admin::Stub* admin,
                                             const v1::WatchEventsRequest& request = {}) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < deadline) {
    EventIndex dump;
    dump.Connect(admin, request);
    if (!dump.UntilWhole()) return ::testing::AssertionFailure() << "there is no snapshot";
    const EventPlace at = dump.place();
    const auto expected = dump.blocks();
    if (!index.Until([&] { return index.place_unlocked().sequence >= at.sequence; })) {
      return ::testing::AssertionFailure() << "no event " << at.sequence << " came";
    }
    const EventPlace own = index.place();
    if (own.sequence != at.sequence || !own.whole || dump.place().sequence != at.sequence) continue;
    if (own.epoch != at.epoch) return ::testing::AssertionFailure() << "another epoch";
    if (index.blocks() == expected) return ::testing::AssertionSuccess();
    if (index.place().sequence != at.sequence) continue;
    return ::testing::AssertionFailure()
           << index.blocks().size() << " blocks of events, " << expected.size() << " of the dump";
  }
  return ::testing::AssertionFailure() << "the daemon changes what is stored for ever";
}

}  // namespace prefixd::testing
