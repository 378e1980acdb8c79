#include "remote/cluster.h"

#include <algorithm>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"

#include "os/process.h"
#include "remote/server_settings.h"

namespace prefixd::remote {
namespace {

constexpr size_t kAskedAtOnce = 3;

bool HasNoCluster(const Reply& slots, const Reply& info) {
  if (!slots.error()) return false;
  return slots.text.starts_with("ERR") ||
         (info.text_or_simple() && info.text.find("cluster_enabled:0") != std::string::npos);
}

bool SameServers(const Topology& a, const Topology& b) {
  return a.cluster == b.cluster && a.nodes == b.nodes && a.node_of_slot == b.node_of_slot;
}

}  // namespace

Cluster::Cluster(Options options)
    : options_(std::move(options)),
      shares_(options_.shares),
      next_seed_(options_.seed),
      random_(options_.seed) {
  thread_ = std::thread([this] { Loop(); });
}

Cluster::~Cluster() {
  {
    const base::MutexLock lock(mutex_);
    stopped_ = true;
  }
  stop_.Set();
  wake_.NotifyAll();
  thread_.join();
}

std::shared_ptr<const Topology> Cluster::Get(base::Deadline deadline, std::string* why) {
  const base::MutexLock lock(mutex_);
  while (topology_ == nullptr && !failed_ && known_.WaitUntil(mutex_, deadline)) {
  }
  if (topology_ == nullptr) *why = failed_ ? why_ : "the servers did not answer yet";
  return topology_;
}

bool Cluster::WaitKnown(base::Deadline deadline) const {
  const base::MutexLock lock(mutex_);
  while (topology_ == nullptr && known_.WaitUntil(mutex_, deadline)) {
  }
  return topology_ != nullptr;
}

void Cluster::Doubt(bool topology) {
  {
    const base::MutexLock lock(mutex_);
    if (woken_ && doubted_ >= topology) return;
    doubted_ = doubted_ || topology;
    woken_ = true;
  }
  wake_.NotifyOne();  // the thread alone waits for it
}

std::shared_ptr<Node> Cluster::At(const Endpoint& address) {
  const base::MutexLock lock(mutex_);
  if (nodes_.size() > kSlots) {  // a server that names others without end
    std::erase_if(nodes_, [](const auto& node) { return node.second.use_count() == 1; });
  }
  return AtLocked(address);
}

std::shared_ptr<Node> Cluster::AtLocked(const Endpoint& address) {
  std::shared_ptr<Node>& node = nodes_[address];
  if (node == nullptr) {
    node =
        std::make_shared<Node>(address, &options_.login, &resolver_, options_.clock, ++next_seed_);
  }
  return node;
}

RemoteStatus Cluster::Status() const {
  const base::MutexLock lock(mutex_);
  RemoteStatus status;
  status.tls = options_.login.tls != nullptr;
  status.warnings = JoinWarnings(warnings_);
  if (!seeds_warning_.empty()) status.warnings.push_back(seeds_warning_);
  if (topology_ == nullptr) {
    if (failed_) status.warnings.push_back(why_);
    return status;
  }
  status.known = true;
  status.cluster = topology_->cluster;
  for (const std::shared_ptr<Node>& node : topology_->nodes) {
    status.nodes.push_back(node->Status());
    status.nodes.back().in_flight_bytes = shares_.InFlight(node.get());
  }
  return status;
}

// --- the thread -------------------------------------------------------------------------------

void Cluster::Loop() {
  os::NameThisThread("prefixd-remote");
  while (!stopped_) {
    const int64_t wait_us = std::clamp<int64_t>(Step() - now_us(), 1000, 1'000'000);
    const base::Deadline until =
        std::chrono::steady_clock::now() + std::chrono::microseconds(wait_us);
    const base::MutexLock lock(mutex_);
    while (!stopped_ && !woken_ && wake_.WaitUntil(mutex_, until)) {
    }
    woken_ = false;
  }
}

int64_t Cluster::Step() {
  std::vector<std::shared_ptr<Node>> nodes, due;
  bool doubted;
  {
    const base::MutexLock lock(mutex_);
    if (topology_ != nullptr) nodes = topology_->nodes;
    doubted = doubted_;
  }
  LogChanges(nodes);
  const bool down =
      std::any_of(nodes.begin(), nodes.end(), [](const auto& node) { return node->open(); });
  if (doubted && now_us() >= next_refresh_us_) {
    Refresh();
    return now_us();  // the servers may be others now
  }
  for (const std::shared_ptr<Node>& node : nodes) {
    if (node->TakeProbe()) due.push_back(node);
  }
  if (!due.empty()) Probe(due);
  LogChanges(nodes);
  if (!nodes.empty() && now_us() >= next_settings_us_) {
    CheckSettings(nodes);
    next_settings_us_ = now_us() + Jittered(kSettingsUs);
  }

  int64_t next_us = next_settings_us_;
  for (const std::shared_ptr<Node>& node : nodes) {
    if (node->open()) next_us = std::min(next_us, node->next_try_us());
  }
  if (doubted) next_us = std::min(next_us, next_refresh_us_);
  if (down && !doubted) {
    // A failover may give its slots to another server.
    const int64_t again_us = next_refresh_us_ + kDownRefreshUs;
    if (now_us() >= again_us) Doubt(/*topology=*/true);
    next_us = std::min(next_us, again_us);
  }
  return next_us;
}

std::vector<Endpoint> Cluster::WhomToAsk() {
  std::vector<Endpoint> known, asked;
  {
    const base::MutexLock lock(mutex_);
    if (topology_ != nullptr && topology_->cluster) {
      for (const std::shared_ptr<Node>& node : topology_->nodes) {
        if (!node->open()) known.push_back(node->address());
      }
    }
  }
  std::shuffle(known.begin(), known.end(), random_);
  known.insert(known.end(), options_.seeds.begin(), options_.seeds.end());
  for (const Endpoint& address : known) {
    if (std::find(asked.begin(), asked.end(), address) == asked.end()) asked.push_back(address);
  }
  return asked;
}

void Cluster::Refresh() {
  {
    const base::MutexLock lock(mutex_);
    doubted_ = false;  // what is said from now on is not yet answered
  }
  const std::vector<Endpoint> addresses = WhomToAsk();
  std::string why;
  for (size_t begin = 0; begin < addresses.size() && !stopped_; begin += kAskedAtOnce) {
    std::vector<Talk> talks(std::min(kAskedAtOnce, addresses.size() - begin));
    for (size_t i = 0; i < talks.size(); ++i) {
      talks[i].connection =
          std::make_unique<Connection>(addresses[begin + i], options_.login, &resolver_);
      talks[i].connection->Send(Commands().Call({"CLUSTER", "SLOTS"}));
      talks[i].connection->Send(Commands().Call({"INFO", "cluster"}));
      talks[i].questions = 2;
    }
    Converse(talks, Soon(), stop_.fd(), /*first_is_enough=*/true);
    for (size_t i = 0; i < talks.size(); ++i) {
      if (talks[i].done && talks[i].status.ok())
        return Learn(addresses[begin + i], talks[i].replies);
      if (why.empty()) {
        why = talks[i].done
                  ? std::string(talks[i].status.message())
                  : absl::StrCat("redis at ", TextOf(addresses[begin + i]), ": no answer in time");
      }
    }
  }
  if (!stopped_) Failed(why);
}

void Cluster::Learn(const Endpoint& from, const std::vector<Reply>& replies) {
  const std::string who = absl::StrCat("redis at ", TextOf(from), ": ");
  if (HasNoCluster(replies[0], replies[1])) {
    {
      const base::MutexLock lock(mutex_);
      seeds_warning_ = options_.seeds.size() < 2
                           ? ""
                           : absl::StrCat(who, "it is no cluster: of ", options_.seeds.size(),
                                          " servers that are named, it alone is used");
    }
    return Adopt(/*cluster=*/false, {{.first = 0, .last = kSlots - 1, .primary = from}});
  }
  if (replies[0].error()) {
    return Failed(absl::StrCat(who, InWords(replies[0].text, options_.login.user)));
  }
  const absl::StatusOr<std::vector<SlotRange>> ranges = ReadSlots(replies[0], from.host);
  if (!ranges.ok()) return Failed(absl::StrCat(who, std::string(ranges.status().message())));
  Adopt(/*cluster=*/true, *ranges);
}

void Cluster::Adopt(bool cluster, const std::vector<SlotRange>& ranges) {
  auto learned = std::make_shared<Topology>();
  learned->cluster = cluster;
  std::set<Endpoint> primaries;
  for (const SlotRange& range : ranges) primaries.insert(range.primary);
  bool changed = false;
  {
    const base::MutexLock lock(mutex_);
    std::map<Endpoint, int> index;
    for (const Endpoint& address : primaries) {
      index[address] = static_cast<int>(learned->nodes.size());
      learned->nodes.push_back(AtLocked(address));
    }
    for (const SlotRange& range : ranges) {
      for (int slot = range.first; slot <= range.last; ++slot) {
        learned->node_of_slot[static_cast<size_t>(slot)] = index[range.primary];
      }
    }
    // Who holds no slot any more is forgotten, with its connections.
    std::erase_if(nodes_, [&](const auto& node) { return !primaries.contains(node.first); });
    std::erase_if(warnings_, [&](const auto& of) {
      return std::none_of(primaries.begin(), primaries.end(),
                          [&](const Endpoint& address) { return TextOf(address) == of.first; });
    });
    changed = topology_ == nullptr || !SameServers(*topology_, *learned);
    if (topology_ == nullptr || topology_->nodes != learned->nodes) next_settings_us_ = 0;
    if (changed) topology_ = learned;
    failed_ = false;
  }
  known_.NotifyAll();
  refresh_wait_us_ = kRefreshUs;
  next_refresh_us_ = now_us() + Jittered(kRefreshUs);
  if (changed) {
    Log(News::kGood, cluster ? absl::StrCat("redis cluster, ", learned->nodes.size(), " primaries")
                             : absl::StrCat("one redis server, ", TextOf(*primaries.begin())));
  }
}

void Cluster::Failed(const std::string& why) {
  bool news;
  {
    const base::MutexLock lock(mutex_);
    news = !failed_ || why_ != why;
    failed_ = true;
    why_ = why;
    doubted_ = true;
  }
  known_.NotifyAll();
  next_refresh_us_ = now_us() + Jittered(refresh_wait_us_);
  refresh_wait_us_ = std::min(2 * refresh_wait_us_, kLongestRefreshUs);
  if (news) Log(News::kBad, absl::StrCat("which server has what cannot be learned: ", why));
}

void Cluster::Probe(const std::vector<std::shared_ptr<Node>>& nodes) {
  std::vector<Talk> talks(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    talks[i].connection = nodes[i]->Take();
    talks[i].connection->Send(Commands().Call({"PING"}));
    talks[i].questions = 1;
  }
  Converse(talks, Soon(), stop_.fd());
  for (size_t i = 0; i < nodes.size(); ++i) {
    std::string why(talks[i].status.message());
    bool well = talks[i].status.ok();
    if (well && talks[i].replies[0].error()) {
      // Whoever may not PING may do the rest.
      well = talks[i].replies[0].text.starts_with("NOPERM");
      why = InWords(talks[i].replies[0].text, options_.login.user);
    }
    nodes[i]->Probed(well, why);
    if (well) nodes[i]->Give(std::move(talks[i].connection));
  }
}

void Cluster::CheckSettings(const std::vector<std::shared_ptr<Node>>& nodes) {
  std::vector<Talk> talks;
  std::vector<std::shared_ptr<Node>> asked;
  for (const std::shared_ptr<Node>& node : nodes) {
    if (node->open()) continue;
    asked.push_back(node);
    Talk& talk = talks.emplace_back();
    talk.connection = node->Take();
    for (const char* const setting : CheckedSettings()) {
      talk.connection->Send(Commands().Call({"CONFIG", "GET", setting}));
      ++talk.questions;
    }
  }
  Converse(talks, Soon(), stop_.fd());
  for (size_t i = 0; i < talks.size(); ++i) {
    if (talks[i].status.ok()) asked[i]->Give(std::move(talks[i].connection));
  }
  std::vector<std::string> before, after;
  {
    const base::MutexLock lock(mutex_);
    before = JoinWarnings(warnings_);
    for (size_t i = 0; i < talks.size(); ++i) {
      if (!talks[i].status.ok()) continue;
      warnings_[TextOf(asked[i]->address())] =
          SettingsWarnings(talks[i].replies, options_.login.user);
    }
    after = JoinWarnings(warnings_);
  }
  for (const std::string& warning : after) {
    if (std::find(before.begin(), before.end(), warning) == before.end()) {
      Log(News::kBad, warning);
    }
  }
}

void Cluster::LogChanges(const std::vector<std::shared_ptr<Node>>& nodes) {
  for (const std::shared_ptr<Node>& node : nodes) {
    const std::string address = TextOf(node->address());
    bool& logged = logged_open_[address];
    const bool open = node->open();
    if (logged == open) continue;
    logged = open;
    Log(open ? News::kBad : News::kGood,
        open ? absl::StrCat("redis at ", address, " is given up for now: ", node->Status().why)
             : absl::StrCat("redis at ", address, " answers again"));
  }
}

}  // namespace prefixd::remote
