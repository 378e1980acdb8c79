#include "client/llama/relay.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

namespace prefixd::llama {
namespace {

constexpr std::chrono::hours kAnswer{24};        // a server may compute for long
constexpr std::chrono::milliseconds kLook{200};  // then the client is looked at
constexpr size_t kMostAhead = size_t{4} << 20;   // bytes that wait for a slow client
constexpr size_t kEndBytes = size_t{16} << 10;   // of an answer, kept for its timings

// Set by the library, or said by prefixd-llama itself ("REMOTE_ADDR" and others are httplib's own).
constexpr std::array<std::string_view, 12> kOfConnection = {
    "connection", "keep-alive", "transfer-encoding", "content-length", "host",        "upgrade",
    "te",         "trailer",    "accept-encoding",   "remote_addr",    "remote_port", "expect"};

}  // namespace

bool IsOfConnection(const std::string& header) {
  std::string lower(header.size(), ' ');
  std::transform(header.begin(), header.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::find(kOfConnection.begin(), kOfConnection.end(), lower) != kOfConnection.end() ||
         lower == "local_addr" || lower == "local_port";
}

Relay::Relay(const LlamaServer& server, const httplib::Request& request, std::string body)
    : client_(server.Connect(kAnswer)) {
  request_.method = request.method;
  request_.path = request.target;
  for (const auto& [name, value] : request.headers) {
    if (!IsOfConnection(name)) request_.headers.emplace(name, value);
  }
  request_.headers.emplace("Accept-Encoding", "identity");
  request_.body = std::move(body);
  request_.response_handler = [this](const httplib::Response& head) {
    base::MutexLock lock(mutex_);
    head_.status = head.status;
    head_.headers = head.headers;
    head_came_ = true;
    moved_.NotifyAll();
    return !gave_up_;
  };
  request_.content_receiver = [this](const char* data, size_t size, uint64_t, uint64_t) {
    return Take(data, size);
  };
  thread_ = std::thread([this] { Run(); });
}

Relay::~Relay() {
  {
    base::MutexLock lock(mutex_);
    gave_up_ = true;
    moved_.NotifyAll();
  }
  client_->stop();
  thread_.join();
}

void Relay::Run() {
  httplib::Response response;
  httplib::Error error = httplib::Error::Success;
  const bool sent = client_->send(request_, response, error);
  base::MutexLock lock(mutex_);
  if (sent && !head_came_) {  // an answer without a body
    head_.status = response.status;
    head_.headers = response.headers;
    head_came_ = true;
  }
  error_ = error;
  over_ = true;
  whole_ = sent;
  moved_.NotifyAll();
}

bool Relay::Take(const char* data, size_t size) {
  base::MutexLock lock(mutex_);
  while (bytes_ > kMostAhead && !gave_up_) moved_.Wait(mutex_);
  if (gave_up_) return false;
  parts_.emplace_back(data, size);
  bytes_ += size;
  moved_.NotifyAll();
  return true;
}

bool Relay::WaitForHead(ClientSocket* client) {
  base::MutexLock lock(mutex_);
  while (!head_came_ && !over_) {
    const bool in_time = moved_.WaitUntil(mutex_, std::chrono::steady_clock::now() + kLook);
    if (!in_time && client->Gone()) return false;
  }
  return head_came_;
}

Relay::Came Relay::Next(std::string* part) {
  base::MutexLock lock(mutex_);
  const auto until = std::chrono::steady_clock::now() + kLook;
  bool in_time = true;
  while (parts_.empty() && !over_ && in_time) in_time = moved_.WaitUntil(mutex_, until);
  if (parts_.empty()) return !over_ ? Came::kNothingYet : whole_ ? Came::kEnd : Came::kBroken;
  *part = std::move(parts_.front());
  parts_.pop_front();
  bytes_ -= part->size();
  end_.append(*part);
  if (end_.size() > 2 * kEndBytes) end_.erase(0, end_.size() - kEndBytes);
  moved_.NotifyAll();
  return Came::kPart;
}

bool Relay::complete() {
  base::MutexLock lock(mutex_);
  return over_ && whole_ && parts_.empty();
}

}  // namespace prefixd::llama
