#include "bench/remote/redis_process.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"

#include "base/status.h"
#include "bench/common/child_process.h"
#include "bench/remote/loopback.h"

namespace prefixd::bench {
namespace {

constexpr std::chrono::seconds kStartPatience(10);

}  // namespace

std::string FindRedisServer() {
  const char* const path = ::getenv("PATH");
  const std::vector<std::string> folders = absl::StrSplit(path == nullptr ? "" : path, ':');
  for (const std::string& folder : folders) {
    const std::string file = folder + "/redis-server";
    if (::access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

absl::StatusOr<std::unique_ptr<RedisProcess>> RedisProcess::Start(const std::string& directory,
                                                                  const Place& place) {
  const std::string program = FindRedisServer();
  if (program.empty()) return absl::NotFoundError("redis-server is not in PATH");
  std::filesystem::create_directories(directory);
  const std::string log = directory + "/redis.log";
  constexpr int kTries = 3;  // somebody else may take the port first
  for (int i = 0; i < kTries; ++i) {
    const uint16_t port = FreePort();
    Command command{.arguments = {}, .out = log, .errors_too = true};
    if (!place.network_namespace.empty()) {
      command.arguments = {"/usr/bin/env", "ip", "netns", "exec", place.network_namespace};
    }
    for (const std::string& argument :
         {program, std::string("--port"), std::to_string(port), std::string("--bind"),
          place.address, std::string("--protected-mode"), std::string("no"), std::string("--save"),
          std::string(), std::string("--appendonly"), std::string("no"), std::string("--dir"),
          directory}) {
      command.arguments.push_back(argument);
    }
    PREFIXD_ASSIGN_OR_RETURN(const pid_t pid, StartProcess(command));
    std::unique_ptr<RedisProcess> redis(new RedisProcess(pid, port, place));
    if (redis->WaitAnswering()) return redis;
  }
  return absl::InternalError("redis-server does not come up: " + ReadText(log));
}

bool RedisProcess::WaitAnswering() {
  const base::Deadline until = std::chrono::steady_clock::now() + kStartPatience;
  while (std::chrono::steady_clock::now() < until) {
    if (Connect()->Answers()) return true;
    if (::waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = -1;
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

RedisProcess::~RedisProcess() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void RedisProcess::Pause() const { ::kill(pid_, SIGSTOP); }

void RedisProcess::Resume() const { ::kill(pid_, SIGCONT); }

absl::StatusOr<std::shared_ptr<remote::RedisStore>> RedisProcess::OpenStore() const {
  remote::RedisOptions options;
  options.seeds = {{.host = place_.address, .port = port_}};
  PREFIXD_ASSIGN_OR_RETURN(std::shared_ptr<remote::RedisStore> store,
                           remote::RedisStore::Open(std::move(options)));
  if (store->WaitKnown(std::chrono::steady_clock::now() + kStartPatience)) return store;
  return absl::UnavailableError("the store does not get to know its server");
}

}  // namespace prefixd::bench
