// An OpenTelemetry collector that a test plays: it listens on a port of 127.0.0.1, answers POSTs as
// it is told, and keeps the spans that it was sent.
#pragma once
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/mutex.h"
#include "daemon/tracing/collector_address.h"
#include "prefixd/otlp/trace.pb.h"

namespace prefixd::testing {

inline constexpr char kHttpOk[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

class PlayedCollector {
 public:
  // Returns the whole answer to the request with this number, from 0 on; "" = hangs until the
  // client has gone.
  using Answer = std::function<std::string(size_t)>;
  explicit PlayedCollector(Answer answer = [](size_t) { return kHttpOk; })
      : answer_(std::move(answer)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof(address);
    ::bind(listener_.get(), any, length);
    ::listen(listener_.get(), 16);
    ::getsockname(listener_.get(), any, &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~PlayedCollector() {
    stop_ = true;
    thread_.join();
  }

  daemon::CollectorAddress address() const { return {"127.0.0.1", port_, "/v1/traces"}; }
  std::vector<std::string> heads() const {
    const base::MutexLock lock(mutex_);
    return heads_;
  }
  std::vector<otlp::ResourceSpans> resources() const {
    const base::MutexLock lock(mutex_);
    return resources_;
  }
  std::vector<otlp::Span> spans() const {
    std::vector<otlp::Span> all;
    for (const otlp::ResourceSpans& resource : resources()) {
      for (const otlp::ScopeSpans& scope : resource.scope_spans())
        all.insert(all.end(), scope.spans().begin(), scope.spans().end());
    }
    return all;
  }
  // Waits until `done(spans())`. Returns the spans.
  std::vector<otlp::Span> WaitFor(
      const std::function<bool(const std::vector<otlp::Span>&)>& done) const {
    return Wait([&] { return done(spans()); }), spans();
  }
  void WaitForRequests(size_t count) const {
    Wait([&] { return heads().size() >= count; });
  }

 private:
  void Wait(const std::function<bool()>& done) const {
    const base::Deadline deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done()) {
      const base::MutexLock lock(mutex_);
      if (!came_.WaitUntil(mutex_, std::min(deadline, std::chrono::steady_clock::now() +
                                                          std::chrono::milliseconds(50))) &&
          std::chrono::steady_clock::now() >= deadline) {
        return;
      }
    }
  }
  // Returns false at the end of the test.
  bool Ready(int fd) const {
    while (!stop_) {
      pollfd polled{fd, POLLIN, 0};
      if (::poll(&polled, 1, 20) > 0) return true;
    }
    return false;
  }
  void Run() {
    while (Ready(listener_.get())) {
      const base::Descriptor client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (client) Serve(client.get());
    }
  }
  bool Receive(int fd, std::string* to) const {
    char bytes[4096];
    if (!Ready(fd)) return false;
    const ssize_t came = ::recv(fd, bytes, sizeof(bytes), 0);
    if (came > 0) to->append(bytes, static_cast<size_t>(came));
    return came > 0;
  }
  void Serve(int fd) {
    std::string request;
    size_t end = std::string::npos;
    while ((end = request.find("\r\n\r\n")) == std::string::npos) {
      if (!Receive(fd, &request)) return;
    }
    const std::string head = request.substr(0, end);
    const size_t length = std::stoul(head.substr(head.find("Content-Length: ") + 16));
    while (request.size() < end + 4 + length) {
      if (!Receive(fd, &request)) return;
    }
    otlp::ExportTraceServiceRequest message;
    message.ParseFromString(request.substr(end + 4));
    const std::string answer = Note(head, message);
    if (answer.empty()) {
      while (Receive(fd, &request)) {
      }
      return;
    }
    ::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
  }
  std::string Note(const std::string& head, const otlp::ExportTraceServiceRequest& message) {
    const std::string answer = answer_(heads().size());
    const base::MutexLock lock(mutex_);
    heads_.push_back(head);
    if (answer.starts_with("HTTP/1.1 200")) {
      resources_.insert(resources_.end(), message.resource_spans().begin(),
                        message.resource_spans().end());
    }
    came_.NotifyAll();
    return answer;
  }

  const Answer answer_;
  const base::Descriptor listener_;
  uint16_t port_ = 0;
  std::atomic<bool> stop_{false};
  mutable base::Mutex mutex_;
  mutable base::CondVar came_;
  std::vector<std::string> heads_ PREFIXD_GUARDED_BY(mutex_);              // of all requests
  std::vector<otlp::ResourceSpans> resources_ PREFIXD_GUARDED_BY(mutex_);  // answered 200
  std::thread thread_;
};

// The value of an attribute as text, or "none".
inline std::string AttributeOf(const otlp::Span& span, const std::string& key) {
  for (const otlp::KeyValue& attribute : span.attributes()) {
    if (attribute.key() != key) continue;
    return attribute.value().has_string_value() ? attribute.value().string_value()
                                                : std::to_string(attribute.value().int_value());
  }
  return "none";
}

}  // namespace prefixd::testing
