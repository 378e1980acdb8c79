#include "remote/pipeline.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/status.h"

namespace prefixd::remote {
namespace {

// "MOVED 3999 127.0.0.1:6381": the address. An empty host is that of the server that said it.
std::optional<Endpoint> AddressIn(const std::string& error, const Endpoint& from) {
  const std::vector<std::string> words = absl::StrSplit(error, ' ');
  if (words.size() < 3) return std::nullopt;
  const size_t colon = words[2].rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(words[2].substr(colon + 1), &port) ||
      port == 0 || port > 65535) {
    return std::nullopt;
  }
  std::string host = words[2].substr(0, colon);
  if (host.empty() || host == "?") host = from.host;
  return Endpoint{.host = std::move(host), .port = static_cast<uint16_t>(port)};
}

absl::Status StatusOf(const std::string& error, const Node& node) {
  const std::string text = absl::StrCat(TextOf(node.endpoint()), " said ", error);
  if (absl::StartsWith(error, "OOM")) return absl::ResourceExhaustedError(text);
  for (const char* const prefix : {"NOAUTH", "WRONGPASS", "NOPERM"}) {
    if (absl::StartsWith(error, prefix)) return absl::PermissionDeniedError(text);
  }
  // TRYAGAIN, CLUSTERDOWN, LOADING, READONLY, MASTERDOWN, BUSY: it may work later.
  return absl::UnavailableError(text);
}

}  // namespace

// The calls for one server: sent together, read in order.
class Pipeline::Exchange {
 public:
  Exchange(const Target& target, const std::vector<Call*>& calls, Gate* gate,
           base::Deadline deadline)
      : target_(target), calls_(calls), gate_(gate), deadline_(deadline) {
    for (const Call* const call : calls_) bytes_ += call->bytes;
  }
  ~Exchange() {
    if (in_all_) gate_->Leave(bytes_);
    if (in_node_) target_.node->gate.Leave(bytes_);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  void Send() {
    if (target_.node->breaker.open()) {
      return FailFrom(0, absl::UnavailableError(absl::StrCat(TextOf(target_.node->endpoint()),
                                                             " is given up for now")));
    }
    if (!Enter()) {
      return FailFrom(0, absl::DeadlineExceededError("remote: too much is on its way"));
    }
    absl::StatusOr<std::unique_ptr<Connection>> connection = target_.node->Take(deadline_);
    if (!connection.ok()) return Broke(0, connection.status());
    connection_ = *std::move(connection);
    connection_->SetDeadline(deadline_);
    std::vector<const Command*> commands;
    for (const Call* const call : calls_) {
      if (target_.asking) commands.push_back(&asking_);
      commands.push_back(&call->command);
    }
    if (absl::Status sent = connection_->Send(commands); !sent.ok()) Broke(0, sent);
  }
  void Receive() {
    for (size_t i = 0; connection_ != nullptr && i < calls_.size(); ++i) {
      absl::Status read = absl::OkStatus();
      if (target_.asking) read = connection_->reader().Read().status();
      if (read.ok()) read = ReadReply(calls_[i]);
      if (!read.ok()) return Broke(i, read);
    }
    if (connection_ == nullptr) return;
    target_.node->breaker.Worked();
    target_.node->GiveBack(std::move(connection_));
  }

 private:
  bool Enter() {
    if (bytes_ == 0) return true;
    in_all_ = gate_->Enter(bytes_, deadline_);
    in_node_ = in_all_ && target_.node->gate.Enter(bytes_, deadline_);
    return in_node_;
  }
  // An error: nothing more can be read.
  absl::Status ReadReply(Call* call) {
    if (call->into.empty()) {
      PREFIXD_ASSIGN_OR_RETURN(call->reply, connection_->reader().Read());
      call->status = absl::OkStatus();
      return absl::OkStatus();
    }
    ReplyReader::Filled filled = connection_->reader().ReadInto(call->into);
    if (!filled.readable) return filled.status;
    call->reply = std::move(filled.other);
    const bool error = call->reply.is(Reply::Kind::kError);  // its text decides
    call->status = error ? absl::OkStatus() : filled.status;
    return absl::OkStatus();
  }
  void FailFrom(size_t first, const absl::Status& why) {
    for (size_t i = first; i < calls_.size(); ++i) calls_[i]->status = why;
  }
  void Broke(size_t first, const absl::Status& why) {
    connection_ = nullptr;
    target_.node->breaker.Failed(std::string(why.message()));
    FailFrom(first, absl::IsDeadlineExceeded(why) || absl::IsPermissionDenied(why)
                        ? why
                        : absl::UnavailableError(std::string(why.message())));
  }

  const Target target_;
  const std::vector<Call*>& calls_;
  Gate* const gate_;
  const base::Deadline deadline_;
  const Command asking_ = std::move(Command(1).Add("ASKING"));
  uint64_t bytes_ = 0;
  bool in_all_ = false, in_node_ = false;
  std::unique_ptr<Connection> connection_;
};

bool Pipeline::Redirected(Call* call, Target* target) {
  if (!call->status.ok() || !call->reply.is(Reply::Kind::kError)) return false;
  const std::string error = call->reply.text;
  const bool moved = absl::StartsWith(error, "MOVED ");
  if (moved || absl::StartsWith(error, "CLUSTERDOWN")) cluster_->AskToRefresh();
  call->status = StatusOf(error, *target->node);
  if (!moved && !absl::StartsWith(error, "ASK ")) return false;
  const std::optional<Endpoint> to = AddressIn(error, target->node->endpoint());
  if (!to.has_value()) return false;
  *target = {.node = cluster_->NodeAt(*to), .asking = !moved};
  return true;
}

Pipeline::Groups Pipeline::Exchanges(const Groups& groups, base::Deadline deadline) {
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (const auto& [target, calls] : groups) {
    exchanges.push_back(std::make_unique<Exchange>(target, calls, gate_, deadline));
    exchanges.back()->Send();
  }
  for (const std::unique_ptr<Exchange>& exchange : exchanges) exchange->Receive();
  Groups again;
  for (const auto& [target, calls] : groups) {
    for (Call* const call : calls) {
      Target next = target;
      if (Redirected(call, &next)) again[next].push_back(call);
      if (absl::IsUnavailable(call->status)) cluster_->AskToRefresh();
    }
  }
  return again;
}

void Pipeline::Run(std::span<Call* const> calls, base::Deadline deadline) {
  Groups groups;
  for (Call* const call : calls) {
    NodePtr node = cluster_->NodeOf(call->key);
    if (node == nullptr) {
      call->status = absl::UnavailableError("remote: no server is known to have it");
      cluster_->AskToRefresh();
    } else {
      groups[{.node = std::move(node)}].push_back(call);
    }
  }
  for (int round = 0; !groups.empty() && round <= kMostRedirections; ++round) {
    groups = Exchanges(groups, deadline);
  }
}

}  // namespace prefixd::remote
