// The HTTP front of prefixd-llama: the API of llama-server, with slots chosen and filled from
// prefixd on the way.
//
// Thread-safe.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "client/llama/cached_server.h"
#include "client/llama/counts.h"
#include "client/llama/relay.h"
#include "client/llama/slot_table.h"
#include "httplib.h"
#include "prefixd/client.h"

namespace prefixd::llama {

struct ProxyOptions {
  std::string host = "127.0.0.1";
  int port = 8081;                   // 0: any; see Proxy::port()
  std::vector<std::string> servers;  // addresses; all serve the same model
  std::string prefixd = "unix:///run/prefixd/prefixd.sock";
  std::string token_file{};    // as ClientOptions::token_file
  std::string slot_folder;     // the servers' --slot-save-path as this process sees it
  CachedServerOptions each{};  // its address is not used
  std::chrono::milliseconds slot_deadline{600'000};  // then 503: every slot stayed busy
};

class Proxy {
 public:
  explicit Proxy(ProxyOptions options);
  ~Proxy();  // stops

  // Listens. Unavailable if the port is taken.
  absl::Status Listen();
  int port() const { return port_; }
  void Serve();  // until Stop(), which a signal handler's thread may call
  void Stop();

 private:
  struct Exchange;
  void Handle(const httplib::Request& request, httplib::Response& response);
  void HandleMetrics(const httplib::Request& request, httplib::Response& response);
  // Chooses a slot for a prompt and fills it. Leaves the exchange without one where that is not
  // possible; the request is then passed through.
  void ChooseSlot(const httplib::Request& request, Exchange* exchange);
  void PassOn(const httplib::Request& request, std::shared_ptr<Exchange> exchange,
              httplib::Response& response);
  // After the last byte, or when the client has gone.
  void Finish(Exchange* exchange);
  // Returns a server that answers, or the first one.
  CachedServer* AnyServer();

  const ProxyOptions options_;
  Client client_;
  Counts counts_;
  SlotTable slots_;
  StateFolder folder_;
  std::vector<std::unique_ptr<CachedServer>> servers_;
  httplib::Server http_;
  int port_ = 0;
};

}  // namespace prefixd::llama
