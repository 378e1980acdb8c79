// A daemon in this process on a socket of its own, with or without an arena that it shares.
#pragma once
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "cache/cache.h"
#include "daemon/server.h"
#include "tests/client/support.h"
#include "wire/admin_socket.h"

namespace prefixd {

// A place for an arena file, removed with what is in it.
class ArenaPath {
 public:
  ArenaPath() {
    static std::atomic<int> next{0};
    path_ =
        "/dev/shm/prefixd_client_test_" + std::to_string(getpid()) + "_" + std::to_string(next++);
  }
  ~ArenaPath() {
    std::filesystem::remove(path_);
    std::filesystem::remove(path_ + ".key");
    std::filesystem::remove_all(path_ + ".locks");
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct DaemonOptions {
  std::string arena{};      // path; empty: private memory
  std::string directory{};  // of the SSD tier; empty: none
  uint64_t ram_bytes = uint64_t{256} << 20;
  double coarser_above = 0;              // of cache::Options
  std::optional<daemon::Token> token{};  // of TCP on any port; none: no TCP
  daemon::Tracer* tracer = nullptr;      // outlives the daemon; null: no call is traced
};

// A daemon's life: a cache behind a server on `socket`.
class Daemon {
 public:
  explicit Daemon(const std::string& socket, const DaemonOptions& with = {}) {
    spdlog::set_level(spdlog::level::warn);
    cache::Options options;
    options.ram_budget_bytes = with.ram_bytes;
    options.arena_path = with.arena;
    options.coarser_above = with.coarser_above;
    if (!with.directory.empty()) {
      options.directory = with.directory;
      options.ssd_budget_bytes = uint64_t{1} << 30;
      options.segment_bytes = uint64_t{4} << 20;
      options.direct_io = false;
    }
    auto cache = cache::Cache::Open(options);
    if (!cache.ok()) ADD_FAILURE() << cache.status();
    cache_ = *std::move(cache);
    daemon::ServerOptions server_options;
    server_options.socket = socket;
    server_options.admin_socket = wire::AdminSocketOf(socket);
    server_options.threads = 8;
    server_options.token = with.token;
    server_options.tracer = with.tracer;
    if (with.token.has_value()) server_options.listen = "127.0.0.1:0";
    auto server = daemon::Server::Start(cache_.get(), server_options);
    if (!server.ok()) ADD_FAILURE() << server.status();
    server_ = *std::move(server);
  }
  ~Daemon() { server_->Stop(); }

  block::SpaceSummary space() const {
    const std::vector<block::SpaceSummary> spaces = cache_->ListSpaces();
    return spaces.size() == 1 ? spaces[0] : block::SpaceSummary{};
  }
  cache::Cache& cache() { return *cache_; }
  int port() const { return server_->port(); }

 private:
  std::unique_ptr<cache::Cache> cache_;
  std::unique_ptr<daemon::Server> server_;
};

}  // namespace prefixd
