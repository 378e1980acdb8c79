#include "remote/exchange.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "remote/wait.h"

namespace prefixd::remote {
namespace {

using std::chrono::steady_clock;
constexpr auto kTryAgain = std::chrono::milliseconds(5);
// A server is blamed for being late if it had this long, or half of the call's time.
constexpr steady_clock::duration kLeastTime = std::chrono::milliseconds(5);

std::string Ms(steady_clock::duration time) {
  return absl::StrCat(std::chrono::duration_cast<std::chrono::milliseconds>(time).count(), " ms");
}

}  // namespace

void Exchange::Settle(Ask* ask, Ask::Outcome outcome, const std::string& why) {
  ask->outcome = outcome;
  ask->why = why;
  if (ask->node != nullptr) ask->server = TextOf(ask->node->address());
}

void Exchange::Run() {
  if (begun_ >= deadline_) return GiveUpLate();
  std::string why;
  topology_ = cluster_->Get(deadline_, &why);
  if (topology_ == nullptr) {
    const bool late = steady_clock::now() >= deadline_;
    for (Ask& ask : asks_) Settle(&ask, late ? Ask::Outcome::kLate : Ask::Outcome::kDown, why);
    return;
  }
  for (Ask& ask : asks_) Route(&ask);
  for (;;) {
    Launch();
    if (flights_.empty() && delayed_.empty()) return;  // ready_ is empty too
    if (steady_clock::now() >= deadline_) return GiveUpLate();
    Poll();
  }
}

void Exchange::Route(Ask* ask) {
  if (ask->node == nullptr) ask->node = topology_->Of(ask->slot);
  if (ask->node == nullptr) {
    cluster_->Doubt(/*topology=*/true);
    return Settle(ask, Ask::Outcome::kDown, absl::StrCat("no server has slot ", ask->slot));
  }
  if (ask->node->open()) {
    const NodeStatus status = ask->node->Status();
    if (cluster_->now_us() >= status.next_try_us) cluster_->Doubt(/*topology=*/false);
    return Settle(ask, Ask::Outcome::kDown, absl::StrCat("it is given up for now: ", status.why));
  }
  ready_[ask->node].push_back(ask);
}

// A server has one flight of a call at a time, as large as its share. A flight may be over at once,
// and have sent its asks to others.
void Exchange::Launch() {
  while (LaunchOne()) {
    std::erase_if(flights_, [](const Flight& flight) { return flight.asks.empty(); });
  }
}

bool Exchange::LaunchOne() {
  const auto next = std::find_if(ready_.begin(), ready_.end(), [&](const auto& ready) {
    return std::none_of(flights_.begin(), flights_.end(),
                        [&](const Flight& flight) { return flight.node == ready.first; });
  });
  if (next == ready_.end()) return false;
  Flight& flight = flights_.emplace_back();
  flight.node = next->first;
  std::deque<Ask*>& asks = next->second;
  uint64_t bytes = 0;
  while (!asks.empty() &&
         (bytes == 0 || bytes + asks.front()->bytes <= cluster_->shares().of_node())) {
    bytes += asks.front()->bytes;
    flight.asks.push_back(asks.front());
    asks.pop_front();
  }
  if (asks.empty()) ready_.erase(next);
  flight.share = std::make_unique<Shares::Share>(&cluster_->shares(), flight.node.get(), bytes);
  if (flight.share->granted()) Begin(&flight);
  return true;
}

void Exchange::Begin(Flight* flight) {
  flight->begun = steady_clock::now();
  if (flight->node->open()) return Fail(flight, "");  // while it waited
  flight->connection = flight->node->Take();
  std::deque<Ask*> asks;
  for (Ask* const ask : flight->asks) {
    if (ask->asking) {
      flight->connection->Send(Commands().Call({"ASKING"}));
      asks.push_back(nullptr);
    }
    flight->connection->Send(ask->command, ask->into);
    asks.push_back(ask);
  }
  flight->asks = std::move(asks);
  Advance(flight);
}

void Exchange::Advance(Flight* flight) {
  const absl::Status status = flight->connection->Advance();
  Reply reply;
  while (!flight->asks.empty() && flight->connection->TakeReply(&reply)) {
    Ask* const ask = flight->asks.front();
    flight->asks.pop_front();
    if (ask != nullptr) Take(flight, ask, std::move(reply));
  }
  if (flight->asks.empty()) return Finish(flight);
  if (!status.ok()) return Fail(flight, std::string(status.message()));
  const auto waited = steady_clock::now() - flight->begun;
  if (!flight->connection->connected() && waited > cluster_->options().connect_timeout) {
    Fail(flight, absl::StrCat("redis at ", TextOf(flight->node->address()),
                              ": no connection within ", Ms(waited)));
  }
}

void Exchange::Take(Flight* flight, Ask* ask, Reply reply) {
  const std::string& text = reply.text;
  if (reply.error()) {
    if (text.starts_with("MOVED ") || text.starts_with("ASK ")) return Redirect(flight, ask, reply);
    if (text.starts_with("TRYAGAIN") && ++ask->turns < kMostTurns) {
      delayed_.push_back({steady_clock::now() + kTryAgain, ask});
      return;
    }
    const bool loading = text.starts_with("LOADING") || text.starts_with("NOAUTH");
    if (loading || text.starts_with("CLUSTERDOWN") || text.starts_with("MASTERDOWN") ||
        text.starts_with("READONLY") || text.starts_with("TRYAGAIN")) {
      if (loading) flight->unwell = true;
      cluster_->Doubt(/*topology=*/true);
      const std::string why = InWords(text, cluster_->options().login.user);
      if (loading) flight->node->Failed(why);
      return Settle(ask, Ask::Outcome::kDown, why);
    }
  }
  ask->reply = std::move(reply);
  Settle(ask, Ask::Outcome::kReplied, "");
}

// "MOVED SLOT HOST:PORT": the slot is there. "ASK SLOT HOST:PORT": this key may be there already.
void Exchange::Redirect(Flight* flight, Ask* ask, const Reply& reply) {
  const size_t last = reply.text.rfind(' ');
  Endpoint to;
  if (!FromServer(reply.text.substr(last + 1), flight->node->address().host, &to)) {
    return Settle(ask, Ask::Outcome::kDown,
                  absl::StrCat("its answer cannot be read: ", reply.text));
  }
  ask->asking = reply.text.starts_with("ASK ");
  if (!ask->asking) cluster_->Doubt(/*topology=*/true);
  if (++ask->turns >= kMostTurns) {
    return Settle(ask, Ask::Outcome::kDown, "servers send it from one to the other");
  }
  ask->node = cluster_->At(to);
  Route(ask);
}

void Exchange::Finish(Flight* flight) {
  if (!flight->unwell) flight->node->Succeeded();
  flight->node->Give(std::move(flight->connection));
  flight->share.reset();
}

// All that it did not answer is lost. An empty reason: it was given up before it was asked.
void Exchange::Fail(Flight* flight, const std::string& why) {
  if (!why.empty()) {
    flight->node->Failed(why);
    cluster_->Doubt(/*topology=*/true);
  }
  for (Ask* const ask : flight->asks) {
    if (ask != nullptr) {
      Settle(ask, Ask::Outcome::kDown, why.empty() ? flight->node->Status().why : why);
    }
  }
  flight->asks.clear();
  flight->connection.reset();
  flight->share.reset();
}

void Exchange::GiveUpLate() {
  const base::Deadline now = steady_clock::now();
  for (Flight& flight : flights_) {
    if (flight.connection != nullptr) {
      const auto waited = now - flight.begun;
      flight.connection.reset();
      if (waited >= std::min(kLeastTime, (deadline_ - begun_) / 2)) {
        flight.node->Failed(absl::StrCat("redis at ", TextOf(flight.node->address()),
                                         ": no answer within ", Ms(waited)));
        cluster_->Doubt(/*topology=*/true);
      }
    }
  }
  flights_.clear();
  for (Ask& ask : asks_) {
    if (ask.outcome == Ask::Outcome::kPending) {
      Settle(&ask, Ask::Outcome::kLate, "no answer in time");
    }
  }
}

void Exchange::WakeDelayed(base::Deadline now) {
  std::vector<Ask*> due;
  std::erase_if(delayed_, [&](const Delayed& delayed) {
    if (delayed.until <= now) due.push_back(delayed.ask);
    return delayed.until <= now;
  });
  for (Ask* const ask : due) Route(ask);
}

void Exchange::Poll() {
  base::Deadline until = deadline_;
  for (const Delayed& delayed : delayed_) until = std::min(until, delayed.until);
  std::vector<pollfd> fds;
  for (const Flight& flight : flights_) {
    const bool waits = flight.connection == nullptr;
    fds.push_back({.fd = waits ? flight.share->fd() : flight.connection->fd(),
                   .events = waits ? static_cast<short>(POLLIN) : flight.connection->events(),
                   .revents = 0});
    if (!waits && !flight.connection->connected()) {
      until = std::min(
          until, flight.begun + cluster_->options().connect_timeout + std::chrono::milliseconds(1));
    }
  }
  PollUntil(fds, until);
  size_t i = 0;
  for (Flight& flight : flights_) {
    const bool ready = fds[i++].revents != 0;
    if (flight.connection == nullptr) {
      if (flight.share->granted()) Begin(&flight);
    } else if (ready || !flight.connection->connected()) {
      Advance(&flight);
    }
  }
  std::erase_if(flights_, [](const Flight& flight) { return flight.asks.empty(); });
  WakeDelayed(steady_clock::now());
}

}  // namespace prefixd::remote
