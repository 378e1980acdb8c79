#include "daemon/metrics/endpoint.h"

#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <future>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "spdlog/fmt/fmt.h"
#include "spdlog/spdlog.h"

#include "base/descriptor.h"
#include "base/status.h"
#include "civetweb.h"
#include "daemon/listen_address.h"
#include "daemon/metrics/open_metrics.h"
#include "os/sockets.h"
#include "prometheus/text_serializer.h"

namespace prefixd::daemon {
namespace {

// Threads for clients. A Prometheus scrapes with one connection; the others are for people, and so
// that a few clients that hang do not keep it out.
constexpr char kThreads[] = "8";
// How long a client may take for a request, and for taking some of the answer.
constexpr char kPatienceMs[] = "1000";
constexpr char kMostHeaderBytes[] = "8192";
constexpr char kTextFormat[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kPlain[] = "text/plain; charset=utf-8";

constexpr char kFetchSite[] = "Sec-Fetch-Site";

std::string_view TextOf(const char* text) { return text == nullptr ? "" : text; }

int LogAccess(const mg_connection*, const char*) { return 1; }

void Send(mg_connection* connection, std::string_view status, const char* type,
          std::string_view body, bool with_body, std::string_view more_headers = "") {
  const std::string head = fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n"
      "X-Content-Type-Options: nosniff\r\n{}\r\n",
      status, type, body.size(), more_headers);
  if (mg_write(connection, head.data(), head.size()) < 0 || !with_body) return;
  mg_write(connection, body.data(), body.size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& address, std::unique_ptr<Page> page) {
  PREFIXD_ASSIGN_OR_RETURN(const ListenAddress parsed, ParseListenAddress(address));
  const std::string numeric = ToString(parsed);
  static const unsigned once = mg_init_library(0);
  static_cast<void>(once);
  std::unique_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint());
  endpoint->page_ = std::move(page);
  std::array<const char*, 13> options = {"listening_ports",
                                         numeric.c_str(),
                                         "num_threads",
                                         kThreads,
                                         "request_timeout_ms",
                                         kPatienceMs,
                                         "max_request_size",
                                         kMostHeaderBytes,
                                         "enable_directory_listing",
                                         "no",
                                         "enable_keep_alive",
                                         "no",
                                         nullptr};
  mg_callbacks callbacks{};
  callbacks.log_message = Hear;
  callbacks.log_access = LogAccess;
  mg_init_data init{.callbacks = &callbacks,
                    .user_data = endpoint.get(),
                    .configuration_options = options.data()};
  std::array<char, 256> why{};
  mg_error_data error{};  // its other fields differ between civetweb's versions
  error.text = why.data();
  error.text_buffer_size = why.size();
  endpoint->context_ = mg_start2(&init, &error);
  if (endpoint->context_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("metrics: cannot listen on ", address, ": ",
                     endpoint->heard_.empty() ? why.data() : endpoint->heard_));
  }
  endpoint->started_ = true;
  endpoint->host_ = parsed.host;
  mg_server_port port{};
  if (mg_get_server_ports(endpoint->context_, 1, &port) == 1) endpoint->port_ = port.port;
  // The handler serves every path, so that civetweb's own handler of files is never reached.
  mg_set_request_handler(endpoint->context_, "/", Handle, endpoint.get());
  return endpoint;
}

// civetweb looks whether it is to stop when somebody connects, or every two seconds.
MetricsEndpoint::~MetricsEndpoint() {
  if (context_ == nullptr) return;
  try {
    const std::future<void> stopped =
        std::async(std::launch::async, [context = context_] { mg_stop(context); });
    while (stopped.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) Knock();
  } catch (const std::system_error&) {  // no thread: it takes its time
    mg_stop(context_);
  }
}

void MetricsEndpoint::Knock() const {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host_.c_str(), std::to_string(port_).c_str(), &hints, &found) != 0) return;
  const base::Descriptor socket(
      os::NewSocket(found->ai_family, found->ai_socktype, 0, os::Waits::kNo));
  if (socket.get() >= 0) ::connect(socket.get(), found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
}

// In the log only for those who debug, because any client can cause it.
int MetricsEndpoint::Hear(const mg_connection* connection, const char* message) {
  spdlog::debug("metrics: {}", message);
  auto* const self = static_cast<MetricsEndpoint*>(mg_get_user_data(mg_get_context(connection)));
  if (self != nullptr && !self->started_ && self->heard_.empty()) self->heard_ = message;
  return 1;
}

void MetricsEndpoint::Show(std::shared_ptr<const prometheus::Collectable> source,
                           const Exemplars* exemplars) {
  const base::MutexLock lock(mutex_);
  source_ = std::move(source);
  exemplars_ = exemplars;
  shown_.NotifyAll();
}

int MetricsEndpoint::Handle(mg_connection* connection, void* self) {
  static_cast<MetricsEndpoint*>(self)->Answer(connection);
  return 200;  // handled; civetweb sends nothing more
}

void MetricsEndpoint::Answer(mg_connection* connection) {
  const mg_request_info* const request = mg_get_request_info(connection);
  const std::string_view method = request->request_method;
  const std::string_view path = request->local_uri == nullptr ? "" : request->local_uri;
  const bool with_body = method != "HEAD";
  if (method != "GET" && method != "HEAD") {
    return Send(connection, "405 Method Not Allowed", kPlain, "only GET and HEAD\n", true,
                "Allow: GET, HEAD\r\n");
  }
  if (page_ != nullptr && Page::IsPath(path)) {
    const PageReply reply = page_->Answer({.path = path,
                                           .query = TextOf(request->query_string),
                                           .host = TextOf(mg_get_header(connection, "Host")),
                                           .site = TextOf(mg_get_header(connection, kFetchSite))});
    return Send(connection, reply.status, reply.type.c_str(), reply.body, with_body, reply.headers);
  }
  if (path != "/metrics") {
    return Send(connection, "404 Not Found", kPlain, "prefixd: the metrics are at /metrics\n",
                with_body);
  }
  const bool open_metrics = PrefersOpenMetrics(TextOf(mg_get_header(connection, "Accept")));
  const std::string text = Render(open_metrics);
  if (text.empty()) {
    return Send(connection, "503 Service Unavailable", kPlain,
                "prefixd: starting or stopping, there are no metrics now\n", with_body,
                "Retry-After: 1\r\n");
  }
  Send(connection, "200 OK", open_metrics ? kOpenMetricsType : kTextFormat, text, with_body,
       "Vary: Accept\r\n");
}

std::string MetricsEndpoint::Render(bool as_open_metrics) {
  const base::MutexLock lock(mutex_);
  auto begun = std::chrono::steady_clock::now();
  for (; source_ != nullptr && begun < next_; begun = std::chrono::steady_clock::now()) {
    shown_.WaitUntil(mutex_, next_);
  }
  if (source_ == nullptr) return "";
  const std::vector<prometheus::MetricFamily> families = source_->Collect();
  std::string text = as_open_metrics ? WriteOpenMetrics(families, exemplars_)
                                     : prometheus::TextSerializer().Serialize(families);
  const auto end = std::chrono::steady_clock::now();
  next_ = end + 9 * (end - begun);
  return text;
}

}  // namespace prefixd::daemon
