// Publishes events over ZeroMQ as vLLM does: [topic, sequence in 8 bytes big-endian, MessagePack]
// on a PUB socket, and earlier batches to who asks on a ROUTER socket.
//
// Thread-safe. One thread serves the sockets; whoever stores or reads never waits for it.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

#include "cache/cache.h"
#include "daemon/vllm_events.h"
#include "daemon/zmq_library.h"

namespace prefixd::daemon {

class EventPublisher {
 public:
  struct Options {
    std::string publish;  // what the PUB socket binds: tcp://127.0.0.1:5557, ipc:///path
    std::string replay;   // what the ROUTER socket binds; empty = none
    std::string topic;    // "{model}" in it becomes the name of the space's model
  };

  // FailedPrecondition: no ZeroMQ, or an address that cannot be bound. `cache` must outlive this.
  static absl::StatusOr<std::unique_ptr<EventPublisher>> Start(cache::Cache* cache,
                                                               const Options& options);
  ~EventPublisher();

  // Returns whether only this host reaches a socket that is bound there.
  static bool IsLocal(const std::string& endpoint);
  // What the sockets are bound to, with the port that was found for "*".
  const std::string& publish_endpoint() const { return publish_endpoint_; }
  const std::string& replay_endpoint() const { return replay_endpoint_; }

 private:
  // A batch that was published. As vLLM does, the last 10,000 are kept; here at most 32 MiB.
  struct Sent {
    std::string topic, payload;
  };
  class Sockets;

  EventPublisher(cache::Cache* cache, Options options, std::unique_ptr<Sockets> sockets);
  void Run();
  void Publish(const block::EventBatch& batch);
  void Clear();  // tells routers to forget what they hold
  void Send(const std::string& topic, const std::vector<nlohmann::json>& events);
  // Sends a client every kept batch from a sequence on. Publishes a new snapshot if that is no
  // longer kept: then the client cannot know what is stored.
  void Replay(const std::vector<std::string>& request);
  void BeginSnapshot();
  // `space`: by the cache's list of spaces; one that it does not have is not published.
  const PublishedSpace& SpaceOf(const block::SpaceId& space);
  std::string TopicOf(const PublishedSpace& space) const;

  cache::Cache* const cache_;
  const Options options_;
  const std::unique_ptr<Sockets> sockets_;
  std::string publish_endpoint_, replay_endpoint_;
  std::atomic<bool> stopping_{false};
  // Only the thread uses these.
  std::unique_ptr<index::EventReader> reader_;
  std::map<block::SpaceId, PublishedSpace> spaces_;
  std::deque<Sent> sent_;
  uint64_t sent_bytes_ = 0;
  // The next batch gets this number. prefixd starts at the microseconds since 1970: a router that
  // followed an earlier prefixd sees a gap and asks, and takes no new batch for one that it awaits.
  uint64_t next_sequence_;
  uint64_t snapshot_sequence_;  // of the batch that began the last snapshot
  std::thread thread_;
};

}  // namespace prefixd::daemon
