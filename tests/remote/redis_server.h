// Real servers for tests, alone or as a cluster, in a folder of their own. PREFIXD_REDIS_SERVER
// names another program than redis-server, Valkey's for example.
#pragma once
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "base/descriptor.h"
#include "remote/converse.h"
#include "remote/redis_options.h"
#include "tests/remote/bytes.h"
#include "tests/support/process.h"

namespace prefixd::testing {

using Words = std::vector<std::string>;

// Empty: there is none.
inline std::string RedisProgram() {
  if (const char* const named = std::getenv("PREFIXD_REDIS_SERVER")) return named;
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "/usr/bin" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/redis-server").c_str(), X_OK) == 0) return folder + "/redis-server";
  }
  return "";
}

#define PREFIXD_NEEDS_REDIS()                                                  \
  if (prefixd::testing::RedisProgram().empty()) {                              \
    GTEST_SKIP() << "redis-server is not in PATH (scripts/redis-server-link)"; \
  }

inline uint16_t FreePort() {
  const base::Descriptor probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  bind(probe.get(), reinterpret_cast<const sockaddr*>(&address), length);
  getsockname(probe.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

// Asks one command. An error that the connection gave is an error reply.
inline remote::Reply Say(const remote::Endpoint& server, const Words& words,
                         const remote::Login& login = {}, base::Deadline deadline = Patiently()) {
  remote::Resolver resolver;
  std::vector<remote::Talk> talks(1);
  talks[0].connection = std::make_unique<remote::Connection>(server, login, &resolver);
  const std::vector<std::string_view> views(words.begin(), words.end());
  talks[0].connection->Send(remote::Commands().Call(views));
  talks[0].questions = 1;
  remote::Converse(talks, deadline, -1);
  if (talks[0].status.ok()) return talks[0].replies[0];
  return {.kind = remote::Reply::Kind::kError, .text = std::string(talks[0].status.message())};
}

class TempFolder {
 public:
  TempFolder() {
    std::string name = std::filesystem::temp_directory_path() / "prefixd-redis-XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class RedisServer {
 public:
  // Further arguments of the program. With TLS, `login` is how the test itself asks it.
  explicit RedisServer(Words arguments = {}, remote::Login login = {})
      : arguments_(std::move(arguments)),
        login_(std::move(login)),
        port_(FreePort()),
        bus_(FreePort()) {
    Start();
  }
  // Starts it, again where it was. False: it did not come.
  bool Start() {
    Words argv = {RedisProgram(),
                  "--bind",
                  "127.0.0.1",
                  login_.tls ? "--tls-port" : "--port",
                  std::to_string(port_),
                  "--dir",
                  folder_.path(),
                  "--logfile",
                  "log",
                  "--save",
                  "",
                  "--appendonly",
                  "no",
                  "--cluster-port",
                  std::to_string(bus_)};
    if (login_.tls) argv.insert(argv.end(), {"--port", "0"});
    argv.insert(argv.end(), arguments_.begin(), arguments_.end());
    process_ = std::make_unique<Process>(std::move(argv));
    const base::Deadline deadline = Patiently();
    while (std::chrono::steady_clock::now() < deadline) {
      const std::string answer = Say({"PING"}).text;
      if (answer == "PONG" || answer.find("asks for a password") != answer.npos) return true;
      std::this_thread::yield();
    }
    return false;
  }
  void Kill() { process_.reset(); }
  void Signal(int signal) { process_->Signal(signal); }
  remote::Endpoint endpoint() const { return {"127.0.0.1", port_}; }
  uint16_t bus() const { return bus_; }
  remote::Reply Say(const Words& words) const {
    return testing::Say(endpoint(), words, login_, In(std::chrono::seconds(5)));
  }
  // A line of INFO.
  std::string Info(const std::string& name) const {
    const std::string all = "\r\n" + Say({"INFO", "everything"}).text;
    const size_t at = all.find("\r\n" + name + ":");
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size() + 3;
    return all.substr(begin, all.find("\r\n", begin) - begin);
  }

 private:
  const Words arguments_;
  const remote::Login login_;
  const TempFolder folder_;
  const uint16_t port_, bus_;
  std::unique_ptr<Process> process_;
};

// Primaries, each with its part of the slots, and replicas of the first ones.
class RedisCluster {
 public:
  static constexpr int kNodeTimeoutMs = 1000;

  struct Options {
    size_t primaries = 3;
    size_t replicas = 0;
    Words arguments{};  // further ones of each program
  };
  explicit RedisCluster(size_t replicas)
      : RedisCluster(Options{.primaries = 3, .replicas = replicas, .arguments = {}}) {}
  explicit RedisCluster(const Options& options)
      : primaries_(options.primaries), replicas_(options.replicas) {
    Words arguments = {"--cluster-enabled",
                       "yes",
                       "--cluster-node-timeout",
                       std::to_string(kNodeTimeoutMs),
                       "--cluster-require-full-coverage",
                       "no"};
    arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
    for (size_t i = 0; i < primaries_ + replicas_; ++i) {
      servers_.push_back(std::make_unique<RedisServer>(arguments));
    }
    for (size_t i = 0; i < primaries_; ++i) {
      server(i).Say({"CLUSTER", "ADDSLOTSRANGE", std::to_string(16384 * i / primaries_),
                     std::to_string(16384 * (i + 1) / primaries_ - 1)});
    }
    for (size_t i = 1; i < servers_.size(); ++i) {
      server(0).Say({"CLUSTER", "MEET", "127.0.0.1", std::to_string(server(i).endpoint().port),
                     std::to_string(server(i).bus())});
    }
  }
  // Waits until all know all and all slots are served. False: it did not come to that.
  bool WaitReady() {
    const bool met = Wait([&] {
      for (const auto& each : servers_) {
        if (ClusterInfo(*each, "cluster_known_nodes") != std::to_string(servers_.size()))
          return false;
      }
      return true;
    });
    for (size_t i = 0; met && i < replicas_; ++i) {
      server(primaries_ + i).Say({"CLUSTER", "REPLICATE", IdOf(i)});
    }
    return met && Wait([&] {
             for (const auto& each : servers_) {
               if (ClusterInfo(*each, "cluster_state") != "ok") return false;
             }
             for (size_t i = 0; i < replicas_; ++i) {
               if (server(primaries_ + i).Info("master_link_status") != "up") return false;
             }
             return true;
           });
  }
  // Whether all know of the last change, and no two servers' claims are as new as each other. A
  // slot that is given away before that may end up with nobody.
  bool Settled() {
    std::set<std::string> current, mine;
    for (const auto& each : servers_) {
      current.insert(ClusterInfo(*each, "cluster_current_epoch"));
      mine.insert(ClusterInfo(*each, "cluster_my_epoch"));
    }
    return current.size() == 1 && mine.size() == primaries_;
  }
  RedisServer& server(size_t i) { return *servers_[i]; }
  size_t size() const { return servers_.size(); }
  std::string IdOf(size_t i) { return server(i).Say({"CLUSTER", "MYID"}).text; }
  std::vector<remote::Endpoint> seeds() const {
    std::vector<remote::Endpoint> seeds;
    for (const auto& each : servers_) seeds.push_back(each->endpoint());
    return seeds;
  }
  template <typename Done>
  static bool Wait(Done done) {
    const base::Deadline deadline = In(std::chrono::seconds(60));
    while (!done()) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }

 private:
  static std::string ClusterInfo(const RedisServer& server, const std::string& name) {
    const std::string all = server.Say({"CLUSTER", "INFO"}).text;
    const size_t at = all.find(name + ":");
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size() + 1;
    return all.substr(begin, all.find("\r\n", begin) - begin);
  }

  const size_t primaries_, replicas_;
  std::vector<std::unique_ptr<RedisServer>> servers_;
};

}  // namespace prefixd::testing
