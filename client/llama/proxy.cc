#include "client/llama/proxy.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "client/llama/prompt_request.h"

namespace prefixd::llama {
namespace {

constexpr size_t kConnections = 256;  // each has a thread
constexpr char kCachedTokens[] = "X-Prefixd-Cached-Tokens", kSavedMs[] = "X-Prefixd-Saved-Ms";
constexpr char kRequestId[] = "X-Prefixd-Request-Id";
constexpr size_t kMostRequestIdBytes = 128;

// Returns what prefixctl why knows the request by: the client's X-Request-Id where that can be
// logged, else a new one.
std::string RequestIdOf(const httplib::Request& request, uint64_t number) {
  const std::string given = request.get_header_value("X-Request-Id");
  const bool plain = std::all_of(given.begin(), given.end(), absl::ascii_isgraph);
  if (!given.empty() && given.size() <= kMostRequestIdBytes && plain) return given;
  return absl::StrCat("llama-", getpid(), "-", number);
}

// As llama-server itself says that it cannot answer now.
void Refuse(int status, const std::string& message, httplib::Response& response) {
  const nlohmann::json body = {
      {"error", {{"code", status}, {"message", message}, {"type", "unavailable_error"}}}};
  response.status = status;
  response.set_content(body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                       "application/json");
}

}  // namespace

// What one request holds.
struct Proxy::Exchange {
  CachedServer* server = nullptr;
  std::string body;
  std::string request_id;
  std::vector<uint32_t> prompt;         // empty: passed through
  std::optional<SlotTable::Held> slot;  // given back last
  CachedServer::Restored restored;
  std::unique_ptr<Relay> relay;
};

Proxy::Proxy(ProxyOptions options)
    : options_(std::move(options)),
      client_({.address = options_.prefixd,
               .token_file = options_.token_file,
               .name = "prefixd-llama",
               .connect_deadline = std::chrono::milliseconds(200)}),
      folder_(options_.slot_folder) {
  for (size_t i = 0; i < options_.servers.size(); ++i) {
    CachedServerOptions each = options_.each;
    each.address = options_.servers[i];
    servers_.push_back(
        std::make_unique<CachedServer>(std::move(each), i, &client_, &slots_, &folder_, &counts_));
  }
  http_.new_task_queue = [] { return new httplib::ThreadPool(kConnections); };
  http_.set_tcp_nodelay(true);
  http_.set_keep_alive_max_count(1'000'000);
  const auto handle = [this](const httplib::Request& request, httplib::Response& response) {
    Handle(request, response);
  };
  http_.Get("/metrics", [this](const httplib::Request& request, httplib::Response& response) {
    HandleMetrics(request, response);
  });
  http_.Get(".*", handle);
  http_.Post(".*", handle);
  http_.Put(".*", handle);
  http_.Patch(".*", handle);
  http_.Delete(".*", handle);
  http_.Options(".*", handle);
}

Proxy::~Proxy() { Stop(); }

absl::Status Proxy::Listen() {
  port_ = options_.port == 0 ? http_.bind_to_any_port(options_.host) : options_.port;
  if (port_ > 0 && (options_.port == 0 || http_.bind_to_port(options_.host, options_.port))) {
    for (const auto& server : servers_) {
      server->Attach().IgnoreError();  // said there
      std::fprintf(stderr, "prefixd-llama: %s\n", server->Describe().c_str());
    }
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", options_.host, ":", options_.port));
}

void Proxy::Serve() { http_.listen_after_bind(); }
void Proxy::Stop() { http_.stop(); }

CachedServer* Proxy::AnyServer() {
  for (const auto& server : servers_) {
    if (server->Attach().ok()) return server.get();
  }
  return servers_[0].get();
}

void Proxy::HandleMetrics(const httplib::Request& request, httplib::Response& response) {
  const auto [held, all] = slots_.Use();
  std::string text = counts_.Text();
  absl::StrAppend(&text, "# HELP prefixd_llama_slots Slots of all servers.\n",
                  "# TYPE prefixd_llama_slots gauge\nprefixd_llama_slots{state=\"busy\"} ", held,
                  "\nprefixd_llama_slots{state=\"free\"} ", all - held, "\n");
  // The server's own, where it has them.
  const auto own = servers_[0]->server().Connect(std::chrono::seconds(2))->Get(request.target);
  if (own && own->status == 200) text += own->body;
  response.set_content(text, "text/plain; version=0.0.4");
}

void Proxy::ChooseSlot(const httplib::Request& request, Exchange* exchange) {
  if (request.method != "POST" || !HasPrompt(request.path)) return;
  exchange->server = AnyServer();
  if (!exchange->server->Attach().ok()) return;
  absl::StatusOr<std::vector<uint32_t>> prompt =
      PromptOf(request.path, request.body, exchange->server->server());
  if (!prompt.ok()) {
    if (absl::IsUnavailable(prompt.status())) exchange->server->Forget();
    return;
  }
  exchange->prompt = *std::move(prompt);
  std::optional<SlotTable::Held> slot =
      slots_.Take(exchange->prompt, std::chrono::steady_clock::now() + options_.slot_deadline);
  if (!slot.has_value()) return;
  exchange->slot.emplace(*std::move(slot));
  exchange->server = servers_[exchange->slot->place().server].get();
  exchange->request_id = RequestIdOf(request, ++counts_.requests);
  counts_.prompt_tokens += exchange->prompt.size();
  exchange->restored =
      exchange->server->Restore(exchange->prompt, exchange->request_id, &*exchange->slot);
  exchange->body = WithSlot(request.body, exchange->slot->place().slot);
}

void Proxy::Handle(const httplib::Request& request, httplib::Response& response) {
  auto exchange = std::make_shared<Exchange>();
  exchange->server = servers_[0].get();
  exchange->body = request.body;
  ChooseSlot(request, exchange.get());
  if (!exchange->prompt.empty() && !exchange->slot.has_value()) {
    return Refuse(503, "every slot stayed busy", response);
  }
  if (!exchange->slot.has_value()) ++counts_.passed_through;
  PassOn(request, std::move(exchange), response);
}

void Proxy::PassOn(const httplib::Request& request, std::shared_ptr<Exchange> exchange,
                   httplib::Response& response) {
  exchange->relay = std::make_unique<Relay>(exchange->server->server(), request, exchange->body);
  Relay* const relay = exchange->relay.get();
  ClientSocket client(request.remote_addr, request.remote_port);
  if (!relay->WaitForHead(&client)) {
    const std::string error = client.Gone() ? "the client has gone" : relay->error();
    if (!client.Gone()) {
      ++counts_.server_errors;
      exchange->server->Forget();
    }
    exchange->relay.reset();
    if (exchange->slot.has_value()) exchange->slot->SetTokens({});
    return Refuse(503, absl::StrCat(exchange->server->server().address(), ": ", error), response);
  }
  response.status = relay->status();
  std::string type;
  for (const auto& [name, value] : relay->headers()) {
    if (absl::EqualsIgnoreCase(name, "content-type")) {
      type = value;
    } else if (!IsOfConnection(name)) {
      response.headers.emplace(name, value);
    }
  }
  if (exchange->slot.has_value()) {
    response.set_header(kCachedTokens, std::to_string(exchange->restored.cached));
    response.set_header(kRequestId, exchange->request_id);
    response.set_header(kSavedMs, std::to_string(exchange->restored.saved.count()));
  }
  response.set_chunked_content_provider(
      type,
      [this, relay](size_t, httplib::DataSink& sink) {
        std::string part;
        switch (relay->Next(&part)) {
          case Relay::Came::kPart:
            return sink.write(part.data(), part.size());
          case Relay::Came::kNothingYet:
            return sink.is_writable();
          case Relay::Came::kEnd:
            sink.done();
            return true;
          case Relay::Came::kBroken:
            ++counts_.server_errors;
            return false;
        }
        return false;
      },
      [this, exchange](bool) { Finish(exchange.get()); });
}

void Proxy::Finish(Exchange* exchange) {
  const bool complete = exchange->relay->complete() && exchange->relay->status() == 200;
  const std::optional<Timings> timings = TimingsIn(exchange->relay->end_of_answer());
  exchange->relay.reset();
  if (!exchange->slot.has_value()) return;
  if (timings.has_value()) {
    exchange->server->Learn(exchange->request_id, exchange->restored, *timings);
  }
  if (complete) {
    exchange->server->Save(static_cast<uint32_t>(exchange->prompt.size()), &*exchange->slot);
  } else {
    exchange->slot->SetTokens({});
  }
  exchange->slot.reset();
}

}  // namespace prefixd::llama
