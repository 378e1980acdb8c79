#include "daemon/event_publisher.h"

#include <array>
#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "spdlog/spdlog.h"

#include "base/clock.h"
#include "base/status.h"

namespace prefixd::daemon {
namespace {

constexpr long kLookMs = 10;     // how long an event waits at most
constexpr long kSnapshotMs = 2;  // between batches of a snapshot, so that subscribers keep up
constexpr int kQueuedBatches = 10'000;  // for a subscriber that is slow; it loses further ones
constexpr size_t kKeptBatches = 10'000;
constexpr uint64_t kKeptBytes = uint64_t{32} << 20;
constexpr uint64_t kEndOfReplay = ~uint64_t{0};
constexpr size_t kMostClientBytes = 256;  // an identity of ZeroMQ has at most 255

std::array<char, 8> BigEndian(uint64_t number) {
  std::array<char, 8> bytes{};
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(number >> (56 - 8 * i));
  return bytes;
}

}  // namespace

class EventPublisher::Sockets {
 public:
  explicit Sockets(const ZmqLibrary* zmq) : zmq_(zmq), context_(zmq->ctx_new()) {}
  ~Sockets() {
    for (void* const socket : {publish_, replay_}) {
      if (socket != nullptr) zmq_->close(socket);
    }
    zmq_->ctx_term(context_);
  }
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;

  absl::Status Bind(const Options& options) {
    PREFIXD_ASSIGN_OR_RETURN(publish_, BindOne(ZMQ_PUB, options.publish));
    if (options.replay.empty()) return absl::OkStatus();
    PREFIXD_ASSIGN_OR_RETURN(replay_, BindOne(ZMQ_ROUTER, options.replay));
    return absl::OkStatus();
  }
  std::string publish_endpoint() const { return EndpointOf(publish_); }
  std::string replay_endpoint() const { return replay_ == nullptr ? "" : EndpointOf(replay_); }

  void Publish(const std::string& topic, uint64_t sequence, const std::string& payload) {
    const std::array<char, 8> number = BigEndian(sequence);
    SendPart(publish_, topic, true);
    SendPart(publish_, {number.data(), number.size()}, true);
    SendPart(publish_, payload, false);
  }

  // Waits up to `ms` for a request; returns its parts, empty if there was none.
  std::vector<std::string> Receive(long ms) {
    std::vector<std::string> parts;
    if (replay_ == nullptr) {
      zmq_->poll(nullptr, 0, ms);
      return parts;
    }
    zmq_pollitem_t item = {replay_, 0, ZMQ_POLLIN, 0};
    if (zmq_->poll(&item, 1, ms) <= 0) return parts;
    int more = 1;
    while (more != 0) {
      std::array<char, kMostClientBytes> part{};
      const int bytes = zmq_->recv(replay_, part.data(), part.size(), ZMQ_DONTWAIT);
      if (bytes < 0) return {};
      if (parts.size() < 4) {
        parts.emplace_back(part.data(), std::min(part.size(), static_cast<size_t>(bytes)));
      }
      size_t size = sizeof(more);
      if (zmq_->getsockopt(replay_, ZMQ_RCVMORE, &more, &size) != 0) more = 0;
    }
    return parts;
  }
  // Returns false if the client does not take it: it is gone, or reads nothing.
  bool Reply(const std::string& client, const std::string& topic, uint64_t sequence,
             const std::string& payload) {
    const std::array<char, 8> number = BigEndian(sequence);
    return SendPart(replay_, client, true) && SendPart(replay_, "", true) &&
           SendPart(replay_, topic, true) &&
           SendPart(replay_, {number.data(), number.size()}, true) &&
           SendPart(replay_, payload, false);
  }

 private:
  absl::StatusOr<void*> BindOne(int type, const std::string& address) {
    void* const socket = zmq_->socket(context_, type);
    if (socket == nullptr) return Failed(address);
    const int none = 0, queued = kQueuedBatches, on = 1;
    zmq_->setsockopt(socket, ZMQ_LINGER, &none, sizeof(none));
    zmq_->setsockopt(socket, ZMQ_SNDHWM, &queued, sizeof(queued));
    if (address.find('[') != std::string::npos) {
      zmq_->setsockopt(socket, ZMQ_IPV6, &on, sizeof(on));
    }
    if (zmq_->bind(socket, address.c_str()) == 0) return socket;
    const absl::Status failed = Failed(address);
    zmq_->close(socket);
    return failed;
  }
  absl::Status Failed(const std::string& address) const {
    return absl::FailedPreconditionError(absl::StrCat("events-publish: cannot bind ", address, ": ",
                                                      zmq_->strerror(zmq_->last_error())));
  }
  std::string EndpointOf(void* socket) const {
    std::array<char, 1024> text{};
    size_t size = text.size();
    return zmq_->getsockopt(socket, ZMQ_LAST_ENDPOINT, text.data(), &size) == 0 ? text.data() : "";
  }
  bool SendPart(void* socket, const std::string& part, bool more) {
    const int flags = ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0);
    return zmq_->send(socket, part.data(), part.size(), flags) >= 0;
  }

  const ZmqLibrary* const zmq_;
  void* const context_;
  void* publish_ = nullptr;
  void* replay_ = nullptr;
};

absl::StatusOr<std::unique_ptr<EventPublisher>> EventPublisher::Start(cache::Cache* cache,
                                                                      const Options& options) {
  PREFIXD_ASSIGN_OR_RETURN(const ZmqLibrary* const zmq, ZmqLibrary::Load());
  auto sockets = std::make_unique<Sockets>(zmq);
  PREFIXD_RETURN_IF_ERROR(sockets->Bind(options));
  return std::unique_ptr<EventPublisher>(new EventPublisher(cache, options, std::move(sockets)));
}

bool EventPublisher::IsLocal(const std::string& endpoint) {
  return endpoint.starts_with("ipc://") || endpoint.starts_with("tcp://127.") ||
         endpoint.starts_with("tcp://[::1]");
}

EventPublisher::EventPublisher(cache::Cache* cache, Options options,
                               std::unique_ptr<Sockets> sockets)
    : cache_(cache),
      options_(std::move(options)),
      sockets_(std::move(sockets)),
      publish_endpoint_(sockets_->publish_endpoint()),
      replay_endpoint_(sockets_->replay_endpoint()),
      next_sequence_(static_cast<uint64_t>(base::SystemClock::Get().UnixMicros())),
      snapshot_sequence_(next_sequence_) {
  BeginSnapshot();
  thread_ = std::thread([this] { Run(); });
}

EventPublisher::~EventPublisher() {
  stopping_ = true;
  thread_.join();
}

void EventPublisher::BeginSnapshot() {
  reader_ = cache_->FollowEvents({.space = {}, .with_tokens = true, .after = {}});
}

void EventPublisher::Run() {
  long wait_ms = 0;
  while (!stopping_) {
    const std::vector<std::string> request = sockets_->Receive(wait_ms);
    if (!request.empty()) Replay(request);
    wait_ms = kLookMs;
    if (!reader_->HasNext()) continue;
    const block::EventBatch batch = reader_->Next();
    Publish(batch);
    wait_ms = batch.blocks.empty() ? 0 : kSnapshotMs;
  }
}

const PublishedSpace& EventPublisher::SpaceOf(const block::SpaceId& space) {
  if (const auto known = spaces_.find(space); known != spaces_.end()) return known->second;
  for (const block::SpaceSummary& summary : cache_->ListSpaces()) {
    spaces_.emplace(summary.id, PublishedSpaceOf(summary.identity));
  }
  static const PublishedSpace none;
  const auto found = spaces_.find(space);
  return found == spaces_.end() ? none : found->second;
}

std::string EventPublisher::TopicOf(const PublishedSpace& space) const {
  return absl::StrReplaceAll(options_.topic, {{"{model}", space.model}});
}

void EventPublisher::Clear() {
  for (const block::SpaceSummary& summary : cache_->ListSpaces()) SpaceOf(summary.id);
  std::set<std::string> topics;
  for (const auto& [id, space] : spaces_) {
    if (space.published) topics.insert(TopicOf(space));
  }
  if (topics.empty()) topics.insert(TopicOf({}));  // what an earlier life published is gone
  snapshot_sequence_ = next_sequence_;
  for (const std::string& topic : topics) Send(topic, {AllBlocksCleared()});
}

void EventPublisher::Publish(const block::EventBatch& batch) {
  if (batch.snapshot_begins) Clear();
  // In order for each space; routers look at no two spaces at once.
  std::map<block::SpaceId, std::vector<nlohmann::json>> events;
  for (const block::StoredBlock& block : batch.blocks) {
    AppendStored(SpaceOf(block.space), block, {}, &events[block.space]);
  }
  for (const block::BlockEvent& event : batch.events) {
    AppendEvent(SpaceOf(event.block.space), event, &events[event.block.space]);
  }
  for (const auto& [space, of_space] : events) {
    if (!of_space.empty()) Send(TopicOf(SpaceOf(space)), of_space);
  }
}

void EventPublisher::Send(const std::string& topic, const std::vector<nlohmann::json>& events) {
  const double unix_s = static_cast<double>(base::SystemClock::Get().UnixMicros()) * 1e-6;
  Sent sent{.topic = topic, .payload = EncodeBatch(unix_s, events)};
  sockets_->Publish(topic, next_sequence_++, sent.payload);
  sent_bytes_ += sent.payload.size();
  sent_.push_back(std::move(sent));
  while (sent_.size() > kKeptBatches || (sent_bytes_ > kKeptBytes && sent_.size() > 1)) {
    sent_bytes_ -= sent_.front().payload.size();
    sent_.pop_front();
  }
}

void EventPublisher::Replay(const std::vector<std::string>& request) {
  if (request.size() != 3 || !request[1].empty() || request[2].size() != 8) {
    spdlog::warn("events: a replay request has {} parts, wants an empty one and 8 bytes",
                 request.size());
    return;
  }
  uint64_t from = 0;
  for (const char byte : request[2]) from = from << 8 | static_cast<uint8_t>(byte);
  const uint64_t oldest = next_sequence_ - sent_.size();
  bool taken = true;
  for (uint64_t at = std::max(from, oldest); at < next_sequence_ && taken; ++at) {
    const Sent& sent = sent_[at - oldest];
    taken = sockets_->Reply(request[0], sent.topic, at, sent.payload);
  }
  if (taken) sockets_->Reply(request[0], "", kEndOfReplay, "");
  // Beyond the end: its sequence is of an earlier life, by a clock that was set back since.
  const bool knows = from <= next_sequence_ && (from >= oldest || snapshot_sequence_ >= oldest);
  if (!knows) BeginSnapshot();
}

}  // namespace prefixd::daemon
