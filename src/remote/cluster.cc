#include "remote/cluster.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "remote/settings_check.h"

namespace prefixd::remote {
namespace {

constexpr std::chrono::milliseconds kProbeEvery(50);
constexpr size_t kMostSlotsBytes = 1 << 20;

uint16_t Crc16(std::string_view bytes) {
  uint16_t crc = 0;
  for (const char byte : bytes) {
    crc = static_cast<uint16_t>(crc ^ static_cast<uint16_t>(static_cast<uint8_t>(byte) << 8));
    for (int bit = 0; bit < 8; ++bit) {
      crc = static_cast<uint16_t>((crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1);
    }
  }
  return crc;
}

bool IsNumber(const Reply& reply, int64_t least, int64_t most) {
  return reply.is(Reply::Kind::kInteger) && reply.number >= least && reply.number <= most;
}

}  // namespace

uint32_t SlotOf(std::string_view key) {
  const size_t open = key.find('{');
  const size_t close = open == key.npos ? key.npos : key.find('}', open + 1);
  if (close != key.npos && close > open + 1) key = key.substr(open + 1, close - open - 1);
  return Crc16(key) % kSlots;
}

Cluster::Cluster(const RedisOptions* options, std::shared_ptr<TlsContext> tls)
    : options_(options), tls_(std::move(tls)) {
  thread_ = std::thread([this] { Run(); });
}

Cluster::~Cluster() {
  {
    const base::MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

NodePtr Cluster::NodeOf(std::string_view key) const {
  const base::MutexLock lock(mutex_);
  if (slots_ == nullptr) return nullptr;
  const uint16_t node = slots_->of[SlotOf(key)];
  return node == kNone ? nullptr : slots_->primaries[node];
}

NodePtr Cluster::NodeAt(const Endpoint& endpoint) {
  const base::MutexLock lock(mutex_);
  NodePtr& node = nodes_[endpoint];
  if (node == nullptr) node = std::make_shared<Node>(endpoint, options_, tls_);
  return node;
}

void Cluster::AskToRefresh() {
  {
    const base::MutexLock lock(mutex_);
    wanted_ = true;
  }
  changed_.NotifyAll();
}

bool Cluster::WaitKnown(base::Deadline deadline) const {
  const base::MutexLock lock(mutex_);
  while (slots_ == nullptr) {
    if (!changed_.WaitUntil(mutex_, deadline)) return false;
  }
  return true;
}

RemoteStatus Cluster::Status() const {
  RemoteStatus status;
  std::shared_ptr<const Slots> slots;
  {
    const base::MutexLock lock(mutex_);
    slots = slots_;
    status.warnings = warnings_;
  }
  if (slots == nullptr) {
    for (const NodePtr& node : Known()) status.nodes.push_back(node->Status());
    return status;
  }
  status.known = true;
  status.cluster = slots->cluster;
  for (const NodePtr& node : slots->primaries) status.nodes.push_back(node->Status());
  std::ranges::sort(status.nodes, {}, &NodeStatus::address);
  return status;
}

std::vector<NodePtr> Cluster::Known() const {
  const base::MutexLock lock(mutex_);
  std::vector<NodePtr> known;
  if (slots_ != nullptr) known = slots_->primaries;
  for (const auto& [endpoint, node] : nodes_) {
    if (std::ranges::find(known, node) == known.end()) known.push_back(node);
  }
  return known;
}

std::shared_ptr<Cluster::Slots> Cluster::ReadSlots(const Reply& reply, const Endpoint& asked) {
  auto slots = std::make_shared<Slots>();
  slots->cluster = true;
  slots->of.fill(kNone);
  std::map<Endpoint, uint16_t> numbers;
  for (const Reply& range : reply.items) {
    // First slot, last slot, then the servers, the primary first: host, port, ...
    if (!range.is(Reply::Kind::kList) || range.items.size() < 3) return nullptr;
    const Reply& server = range.items[2];
    if (!IsNumber(range.items[0], 0, kSlots - 1) || !IsNumber(range.items[1], 0, kSlots - 1) ||
        !server.is(Reply::Kind::kList) || server.items.size() < 2 ||
        !IsNumber(server.items[1], 1, 65535)) {
      return nullptr;
    }
    const std::string& host = server.items[0].text;
    const Endpoint endpoint{.host = host.empty() || host == "?" ? asked.host : host,
                            .port = static_cast<uint16_t>(server.items[1].number)};
    const auto [number, added] =
        numbers.try_emplace(endpoint, static_cast<uint16_t>(slots->primaries.size()));
    if (added) slots->primaries.push_back(NodeAt(endpoint));
    for (int64_t slot = range.items[0].number; slot <= range.items[1].number; ++slot) {
      slots->of[static_cast<size_t>(slot)] = number->second;
    }
  }
  return slots->primaries.empty() ? nullptr : slots;
}

std::shared_ptr<Cluster::Slots> Cluster::Learn(Node& from) {
  if (from.breaker.open()) return nullptr;
  const base::Deadline until = std::chrono::steady_clock::now() + options_->connect_patience;
  absl::StatusOr<std::unique_ptr<Connection>> connection = from.Take(until);
  absl::Status status = connection.status();
  Reply reply;
  if (status.ok()) {
    (*connection)->SetDeadline(until);
    const Command ask = std::move(Command(2).Add("CLUSTER").Add("SLOTS"));
    const Command* const one = &ask;
    status = (*connection)->Send({&one, 1});
    if (status.ok()) {
      absl::StatusOr<Reply> read = (*connection)->reader().Read(kMostSlotsBytes);
      status = read.status();
      if (read.ok()) reply = *std::move(read);
    }
  }
  if (!status.ok()) {
    from.breaker.Failed(std::string(status.message()));
    const base::MutexLock lock(mutex_);
    if (slots_ == nullptr && options_->log && said_ != status.message()) {
      said_ = std::string(status.message());
      options_->log(said_);
    }
    return nullptr;
  }
  from.breaker.Worked();
  from.GiveBack(*std::move(connection));
  if (reply.is(Reply::Kind::kList)) return ReadSlots(reply, from.endpoint());
  if (!reply.is(Reply::Kind::kError) ||
      !absl::StrContains(reply.text, "cluster support disabled")) {
    from.breaker.Failed(absl::StrCat("does not say which slots there are: ", reply.text));
    return nullptr;
  }
  auto alone = std::make_shared<Slots>();  // every slot is number 0
  alone->primaries.push_back(NodeAt(from.endpoint()));
  return alone;
}

void Cluster::Refresh() {
  for (const Endpoint& seed : options_->seeds) NodeAt(seed);
  for (const NodePtr& node : Known()) {
    std::shared_ptr<Slots> slots = Learn(*node);
    if (slots == nullptr) continue;
    {
      const base::MutexLock lock(mutex_);
      const std::set<NodePtr> stay(slots->primaries.begin(), slots->primaries.end());
      std::erase_if(nodes_, [&](const auto& entry) {
        return !stay.contains(entry.second) &&
               std::ranges::find(options_->seeds, entry.first) == options_->seeds.end();
      });
      slots_ = std::move(slots);
    }
    changed_.NotifyAll();
    return;
  }
}

void Cluster::ProbeAll() {
  for (const NodePtr& node : Known()) node->Probe();
}

void Cluster::LookAtSettings() {
  std::set<std::string> warnings;
  for (const NodePtr& node : Known()) {
    if (node->breaker.open()) continue;
    for (std::string& warning : CheckSettings(*node, options_->connect_patience)) {
      warnings.insert(std::move(warning));
    }
  }
  const base::MutexLock lock(mutex_);
  warnings_.assign(warnings.begin(), warnings.end());
}

void Cluster::Run() {
  auto refreshed = std::chrono::steady_clock::time_point();
  auto looked = std::chrono::steady_clock::time_point();
  for (;;) {
    bool wanted = false, known = false;
    {
      const base::MutexLock lock(mutex_);
      if (!stopped_ && !wanted_) {
        changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + kProbeEvery);
      }
      if (stopped_) return;
      wanted = wanted_;
      known = slots_ != nullptr;
    }
    const auto now = std::chrono::steady_clock::now();
    const auto age = now - refreshed;
    if (age >= kRefresh || ((wanted || !known) && age >= kLeastBetween)) {
      {
        const base::MutexLock lock(mutex_);
        wanted_ = false;
      }
      refreshed = now;
      Refresh();
    } else if (wanted) {
      const base::MutexLock lock(mutex_);
      changed_.WaitUntil(mutex_, refreshed + kLeastBetween);
    }
    ProbeAll();
    if (known && now - looked >= kSettings) {
      looked = now;
      LookAtSettings();
    }
  }
}

}  // namespace prefixd::remote
