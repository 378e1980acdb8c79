// A server in this process that answers commands as a test says. Half of what it may say is wrong.
#pragma once
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "base/mutex.h"
#include "remote/redis_options.h"
#include "remote/resp.h"

namespace prefixd::testing {

class FakeRedis {
 public:
  using Words = std::vector<std::string>;
  struct Answer {
    std::string bytes;   // none: it stays silent
    bool close = false;  // behind them
  };
  // Of data commands, on the server's thread. The rest is answered as a server without cluster
  // does, unless it returns something for it.
  using Handler = std::function<Answer(const Words& words)>;

  explicit FakeRedis(Handler handler)
      : handler_(std::move(handler)),
        listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)),
        stop_(eventfd(0, EFD_CLOEXEC)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    socklen_t length = sizeof(address);
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    listen(listener_.get(), 64);
    thread_ = std::thread([this] { Loop(); });
  }
  ~FakeRedis() {
    eventfd_write(stop_.get(), 1);
    thread_.join();
  }
  remote::Endpoint endpoint() const { return {"127.0.0.1", port_}; }
  std::string address() const { return remote::TextOf(endpoint()); }
  int connections() const { return connections_; }
  // Connections that it closed because an answer says so; not those that the client closed.
  int closed() const { return closed_; }
  size_t Count(const std::string& verb) const {
    const base::MutexLock lock(mutex_);
    size_t count = 0;
    for (const Words& words : seen_) count += words[0] == verb;
    return count;
  }
  std::vector<Words> Seen(const std::string& verb) const {
    const base::MutexLock lock(mutex_);
    std::vector<Words> seen;
    for (const Words& words : seen_) {
      if (words[0] == verb) seen.push_back(words);
    }
    return seen;
  }

  static std::string Bulk(const std::string& text) {
    return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
  }
  static std::string Array(const std::vector<std::string>& items) {
    std::string bytes = "*" + std::to_string(items.size()) + "\r\n";
    for (const std::string& item : items) bytes += Bulk(item);
    return bytes;
  }
  // The reply to CLUSTER SLOTS: each server has the same number of slots.
  static std::string Slots(const std::vector<remote::Endpoint>& servers) {
    std::string bytes = "*" + std::to_string(servers.size()) + "\r\n";
    for (size_t i = 0; i < servers.size(); ++i) {
      bytes += "*3\r\n:" + std::to_string(16384 * i / servers.size()) +
               "\r\n:" + std::to_string(16384 * (i + 1) / servers.size() - 1) + "\r\n*2\r\n" +
               Bulk(servers[i].host) + ":" + std::to_string(servers[i].port) + "\r\n";
    }
    return bytes;
  }

 private:
  struct Client {
    base::Descriptor socket;
    remote::ReplyReader reader;  // commands look like replies
    bool hang_up = false;
  };

  void Loop() {
    std::list<Client> clients;
    for (;;) {
      std::vector<pollfd> fds = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const Client& client : clients) fds.push_back({client.socket.get(), POLLIN, 0});
      poll(fds.data(), fds.size(), -1);
      if (fds[0].revents != 0) return;
      size_t i = 2;
      for (auto it = clients.begin(); it != clients.end() && i < fds.size(); ++i) {
        const bool over = fds[i].revents != 0 && !Serve(&*it);
        const bool hung_up = over && it->hang_up;
        it = over ? clients.erase(it) : std::next(it);
        closed_ += hung_up;
      }
      if (fds[1].revents != 0) {
        base::Descriptor accepted(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (accepted) {
          clients.emplace_back().socket = std::move(accepted);
          ++connections_;
        }
      }
    }
  }
  bool Serve(Client* client) {
    std::array<iovec, remote::ReplyReader::kMostPlaces> places;
    client->reader.Places(&places);
    const ssize_t count = recv(client->socket.get(), places[0].iov_base, places[0].iov_len, 0);
    if (count <= 0) return false;
    client->reader.Arrived(static_cast<size_t>(count));
    remote::Reply command;
    while (client->reader.Next(&command) == remote::ReplyReader::State::kReply) {
      Words words;
      for (const remote::Reply& item : command.items) words.push_back(item.text);
      const Answer answer = Answers(words);
      send(client->socket.get(), answer.bytes.data(), answer.bytes.size(), MSG_NOSIGNAL);
      if (answer.close) {
        client->hang_up = true;
        return false;
      }
    }
    return true;
  }
  Answer Answers(const Words& words) {
    {
      const base::MutexLock lock(mutex_);
      seen_.push_back(words);
    }
    Answer answer = handler_(words);
    if (!answer.bytes.empty() || answer.close) return answer;
    const std::string& verb = words[0];
    if (verb == "CLUSTER") return {"-ERR This instance has cluster support disabled\r\n"};
    if (verb == "INFO") return {Bulk("# Cluster\r\ncluster_enabled:0\r\n")};
    if (verb == "HELLO") return {"-ERR unknown command 'HELLO'\r\n"};
    if (verb == "CONFIG") return {"*0\r\n"};
    if (verb == "PING") return {"+PONG\r\n"};
    if (verb == "CLIENT" || verb == "AUTH" || verb == "ASKING") return {"+OK\r\n"};
    return {};
  }

  const Handler handler_;
  const base::Descriptor listener_, stop_;
  uint16_t port_ = 0;
  std::atomic<int> connections_{0}, closed_{0};
  mutable base::Mutex mutex_;
  std::vector<Words> seen_ PREFIXD_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace prefixd::testing
