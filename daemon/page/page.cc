#include "daemon/page/page.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "nlohmann/json.hpp"
#include "spdlog/fmt/fmt.h"

#include "daemon/page/data.h"
#include "daemon/page/files.h"

namespace prefixd::daemon {
namespace {

constexpr std::chrono::seconds kNoteInterval(5);
// All who look at the page share an answer for so long.
constexpr std::chrono::milliseconds kFresh(400);
constexpr char kJson[] = "application/json; charset=utf-8";
constexpr size_t kMostKept = 16;
constexpr size_t kMostQueryBytes = 512;

// No script, style, picture or connection but the daemon's own; no frame around it.
constexpr char kSafety[] =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'\r\n"
    "X-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\nCross-Origin-Resource-Policy: same-origin\r\n"
    "Cache-Control: no-store\r\n";

PageReply Refusal(std::string_view status, std::string_view why) {
  return {.status = status, .body = fmt::format("prefixd: {}\n", why), .headers = kSafety};
}

// Returns the name in "name", "name:9464" or "[::1]:9464".
std::string_view NameIn(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, std::max<size_t>(host.find(']'), 1) - 1);
  return host.substr(0, host.find(':'));
}

// Names can be made to lead here by whoever owns them; addresses cannot.
bool IsOwnName(std::string_view host) {
  const std::string name(NameIn(host));
  if (absl::EqualsIgnoreCase(name, "localhost")) return true;
  std::array<unsigned char, 16> address{};
  return ::inet_pton(AF_INET, name.c_str(), address.data()) == 1 ||
         ::inet_pton(AF_INET6, name.c_str(), address.data()) == 1;
}

PageReply FileReply(std::string_view path) {
  for (const PageFile& file : PageFiles()) {
    if (file.path != path) continue;
    return {.type = file.type, .body = std::string(file.bytes), .headers = kSafety};
  }
  return Refusal("404 Not Found", "the page is at /page/");
}

}  // namespace

bool Page::IsPath(std::string_view path) {
  return path == "/" || path == "/page" || path.starts_with("/page/");
}

Page::Page() : thread_([this] { Run(); }) {}

Page::~Page() {
  {
    const base::MutexLock lock(mutex_);
    ends_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void Page::Show(std::shared_ptr<const PageSource> source) {
  const base::MutexLock lock(mutex_);
  source_ = std::move(source);
  kept_.clear();
  history_.Forget();
  changed_.NotifyAll();
}

void Page::Run() {
  for (;;) {
    const base::MutexLock lock(mutex_);
    if (ends_) return;
    if (source_ != nullptr) history_.Add(source_->Stats());
    const auto next = std::chrono::steady_clock::now() + kNoteInterval;
    const PageSource* const seen = source_.get();
    while (!ends_ && source_.get() == seen && std::chrono::steady_clock::now() < next) {
      changed_.WaitUntil(mutex_, next);
    }
  }
}

PageReply Page::Answer(const PageRequest& request) {
  if (!IsOwnName(request.host)) {
    return Refusal("403 Forbidden",
                   "the page is served by an IP address or as localhost, not by another name");
  }
  if (request.path == "/" || request.path == "/page") {
    PageReply moved = Refusal("302 Found", "the page is at /page/");
    moved.headers += "Location: /page/\r\n";
    return moved;
  }
  if (!request.path.ends_with(".json")) return FileReply(request.path);
  if (request.site == "cross-site" || request.site == "same-site") {
    return Refusal("403 Forbidden", "another page asks for this one's data");
  }
  if (request.query.size() > kMostQueryBytes) return Refusal("414 URI Too Long", "a long query");
  return AnswerData(request);
}

PageReply Page::AnswerData(const PageRequest& request) {
  const base::MutexLock lock(mutex_);
  const std::string key = fmt::format("{}?{}", request.path, request.query);
  auto begun = std::chrono::steady_clock::now();
  for (; source_ != nullptr; begun = std::chrono::steady_clock::now()) {
    if (const auto kept = kept_.find(key); kept != kept_.end() && begun < kept->second.until) {
      return {.type = kJson, .body = kept->second.body, .headers = kSafety};
    }
    if (begun >= next_) break;
    changed_.WaitUntil(mutex_, next_);
  }
  if (source_ == nullptr) {
    PageReply waits = Refusal("503 Service Unavailable", "starting or stopping");
    waits.headers += "Retry-After: 1\r\n";
    return waits;
  }
  const absl::StatusOr<nlohmann::json> data =
      request.path == "/page/history.json"
          ? absl::StatusOr<nlohmann::json>(history_.Json())
          : PageData(*source_, history_, request.path, request.query);
  if (!data.ok()) {
    const bool unknown = absl::IsNotFound(data.status());
    return Refusal(unknown ? "404 Not Found" : "400 Bad Request",
                   std::string(data.status().message()));
  }
  PageReply reply{.type = kJson, .headers = kSafety};
  reply.body = data->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto end = std::chrono::steady_clock::now();
  next_ = end + 9 * (end - begun);
  std::erase_if(kept_, [&](const auto& kept) { return kept.second.until <= end; });
  if (kept_.size() >= kMostKept) kept_.erase(kept_.begin());
  kept_[key] = {.until = end + kFresh, .body = reply.body};
  return reply;
}

}  // namespace prefixd::daemon
