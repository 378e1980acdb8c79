#include "daemon/log.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "spdlog/pattern_formatter.h"
#include "spdlog/spdlog.h"

#include "base/mutex.h"
#include "daemon/library_logs.h"
#include "os/process.h"

namespace prefixd::daemon {
namespace {

using std::chrono::steady_clock;

constexpr char kPattern[] = "%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v";
constexpr size_t kMostMessages = 512;  // with a limit of their own; the rest share one
constexpr size_t kMostOfMessage = 48;  // bytes
constexpr std::chrono::seconds kTellEvery{1};

// How often one message may pass.
struct Bucket {
  double left = 0;
  steady_clock::time_point filled;
  uint64_t held_back = 0;  // lines since the last report
};

class RateLimits {
 public:
  explicit RateLimits(const LogLimits& limits) : limits_(limits) {}

  bool Admit(std::string_view line) {
    const auto now = steady_clock::now();
    Bucket& bucket = BucketOf(MessageOf(line), now);
    Fill(now, &bucket);
    if (bucket.left < 1) {
      ++bucket.held_back;
      return false;
    }
    bucket.left -= 1;
    return true;
  }
  // Returns the messages of which lines were held back since the last call, and how many lines.
  std::vector<std::pair<std::string, uint64_t>> TakeHeldBack() {
    std::vector<std::pair<std::string, uint64_t>> told;
    for (auto& [message, bucket] : buckets_) {
      if (bucket.held_back > 0) told.emplace_back(message, std::exchange(bucket.held_back, 0));
    }
    return told;
  }

 private:
  void Fill(steady_clock::time_point now, Bucket* bucket) const {
    const std::chrono::duration<double> passed = now - bucket->filled;
    bucket->left = std::min(limits_.burst, bucket->left + passed.count() * limits_.per_second);
    bucket->filled = now;
  }
  Bucket& BucketOf(std::string_view message, steady_clock::time_point now) {
    const auto found = buckets_.find(message);
    if (found != buckets_.end()) return found->second;
    if (buckets_.size() >= kMostMessages) ForgetIdle(now);
    const std::string name(buckets_.size() < kMostMessages ? message : "(other messages)");
    return buckets_.try_emplace(name, Bucket{.left = limits_.burst, .filled = now}).first->second;
  }
  void ForgetIdle(steady_clock::time_point now) {
    for (auto& [message, bucket] : buckets_) Fill(now, &bucket);
    std::erase_if(buckets_, [this](const auto& entry) {
      return entry.second.left >= limits_.burst && entry.second.held_back == 0;
    });
  }

  const LogLimits limits_;
  std::map<std::string, Bucket, std::less<>> buckets_;
};

// Writes one piece of at most PIPE_BUF bytes, after poll has said that there is room, and cuts it
// off `text`. So the thread can always be told to stop.
enum class Wrote { kSome, kNothing, kNeverWill };
Wrote WritePiece(int fd, std::string_view* text, steady_clock::time_point until) {
  pollfd wait{.fd = fd, .events = POLLOUT, .revents = 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - steady_clock::now());
  const int ready = ::poll(&wait, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
  if (ready <= 0) return ready == 0 || errno == EINTR ? Wrote::kNothing : Wrote::kNeverWill;
  const ssize_t written = ::write(fd, text->data(), std::min<size_t>(text->size(), PIPE_BUF));
  if (written < 0) {
    const bool again = errno == EINTR || errno == EAGAIN;
    return again ? Wrote::kNothing : Wrote::kNeverWill;
  }
  text->remove_prefix(static_cast<size_t>(written));
  return Wrote::kSome;
}

}  // namespace

std::string_view MessageOf(std::string_view line) {
  const size_t end = line.find_first_of("0123456789=\"");
  return line.substr(0, std::min(end, kMostOfMessage));
}

struct LogSink::State {
  State(int fd, const LogLimits& limits, bool color)
      : fd(fd), limits(limits), color(color), rates(limits) {}

  const int fd;
  const LogLimits limits;
  const bool color;

  base::Mutex format_mutex{"LogSink::format_mutex"};
  std::unique_ptr<spdlog::formatter> formatter PREFIXD_GUARDED_BY(format_mutex) =
      std::make_unique<spdlog::pattern_formatter>(kPattern);

  mutable base::Mutex mutex;
  base::CondVar wake;     // something was queued, or `stop` was set
  base::CondVar written;  // the queue was written, or the thread ended
  RateLimits rates PREFIXD_GUARDED_BY(mutex);
  std::deque<std::string> queue PREFIXD_GUARDED_BY(mutex);
  size_t queued_bytes PREFIXD_GUARDED_BY(mutex) = 0;
  bool writing PREFIXD_GUARDED_BY(mutex) = false;
  bool stop PREFIXD_GUARDED_BY(mutex) = false;
  bool ended PREFIXD_GUARDED_BY(mutex) = false;
  LogLoss loss PREFIXD_GUARDED_BY(mutex);
  uint64_t untold PREFIXD_GUARDED_BY(mutex) = 0;  // dropped lines that were not reported yet

  std::string Format(const spdlog::details::log_msg& message) PREFIXD_EXCLUDES(format_mutex);
  std::string Line(const std::string& text) {
    return Format({"prefixd", spdlog::level::warn, text});
  }
  // Returns lines that report what was left out since the last report.
  std::string TellLosses() PREFIXD_EXCLUDES(mutex);
  void Write(const std::string& text) PREFIXD_EXCLUDES(mutex);
  void Loop() PREFIXD_EXCLUDES(mutex);
  bool Flush(std::chrono::milliseconds limit) PREFIXD_EXCLUDES(mutex);
};

std::string LogSink::State::Format(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t text;
  {
    base::MutexLock lock(format_mutex);
    formatter->format(message, text);
  }
  std::string line(text.data(), text.size());
  if (color && message.color_range_end > message.color_range_start) {
    const bool calm = message.level <= spdlog::level::info;
    line.insert(message.color_range_end, "\033[m");
    line.insert(message.color_range_start, calm ? "\033[32m" : "\033[33m\033[1m");
  }
  return line;
}

std::string LogSink::State::TellLosses() {
  std::vector<std::pair<std::string, uint64_t>> held_back;
  uint64_t dropped = 0;
  {
    base::MutexLock lock(mutex);
    held_back = rates.TakeHeldBack();
    dropped = std::exchange(untold, 0);
  }
  std::string text;
  if (dropped > 0)
    text +=
        Line("log: " + std::to_string(dropped) + " lines were dropped: nobody took them in time");
  for (const auto& [message, lines] : held_back)
    text += Line("log: " + std::to_string(lines) + " more of: " + message);
  return text;
}

// Writes `text`. Takes as long as the reader, but once the end began `limits.at_exit` at most.
void LogSink::State::Write(const std::string& text) {
  std::string_view left = text;
  const auto stopping = [this] {
    base::MutexLock lock(mutex);
    return stop;
  };
  std::optional<steady_clock::time_point> end;
  while (!left.empty()) {
    if (!end.has_value() && stopping()) end = steady_clock::now() + limits.at_exit;
    const auto look = steady_clock::now() + std::chrono::milliseconds(50);
    const Wrote wrote = WritePiece(fd, &left, std::min(look, end.value_or(look)));
    if (wrote == Wrote::kSome) continue;
    if (wrote == Wrote::kNeverWill || (end.has_value() && steady_clock::now() >= *end)) return;
  }
}

void LogSink::State::Loop() {
  os::NameThisThread("prefixd log");
  auto tell_at = steady_clock::now() + kTellEvery;
  bool more = true;
  while (more) {
    std::string text;
    {
      base::MutexLock lock(mutex);
      while (queue.empty() && !stop && wake.WaitUntil(mutex, tell_at)) {
      }
      for (const std::string& line : queue) text += line;
      queue.clear();
      queued_bytes = 0;
      writing = true;
      more = !stop;
    }
    if (!more || steady_clock::now() >= tell_at) {
      text += TellLosses();
      tell_at = steady_clock::now() + kTellEvery;
    }
    Write(text);
    base::MutexLock lock(mutex);
    writing = false;
    ended = !more;
    written.NotifyAll();
  }
}

bool LogSink::State::Flush(std::chrono::milliseconds limit) {
  const auto until = steady_clock::now() + limit;
  base::MutexLock lock(mutex);
  const auto busy = [&]() PREFIXD_REQUIRES(mutex) { return !queue.empty() || writing; };
  while (busy()) {
    if (!written.WaitUntil(mutex, until) && busy()) return false;
  }
  return true;
}

LogSink::LogSink(int fd, const LogLimits& limits, bool color)
    : at_exit_(limits.at_exit), state_(std::make_shared<State>(fd, limits, color)) {
  std::thread([state = state_] { state->Loop(); }).detach();
}

LogSink::~LogSink() {
  const auto until = steady_clock::now() + at_exit_;
  base::MutexLock lock(state_->mutex);
  state_->stop = true;
  state_->wake.NotifyAll();
  while (!state_->ended && state_->written.WaitUntil(state_->mutex, until)) {
  }
}

void LogSink::log(const spdlog::details::log_msg& message) {
  const std::string_view text(message.payload.data(), message.payload.size());
  {
    base::MutexLock lock(state_->mutex);
    if (!state_->rates.Admit(text)) {
      ++state_->loss.limited;
      return;
    }
  }
  std::string line = state_->Format(message);
  base::MutexLock lock(state_->mutex);
  if (state_->queue.size() >= state_->limits.queue_lines ||
      state_->queued_bytes + line.size() > state_->limits.queue_bytes) {
    ++state_->loss.dropped;
    ++state_->untold;
    return;
  }
  state_->queued_bytes += line.size();
  state_->queue.push_back(std::move(line));
  state_->wake.NotifyAll();
}

void LogSink::set_pattern(const std::string& pattern) {
  set_formatter(std::make_unique<spdlog::pattern_formatter>(pattern));
}

void LogSink::set_formatter(std::unique_ptr<spdlog::formatter> formatter) {
  base::MutexLock lock(state_->format_mutex);
  state_->formatter = std::move(formatter);
}

bool LogSink::Flush(std::chrono::milliseconds limit) { return state_->Flush(limit); }

LogLoss LogSink::loss() const {
  base::MutexLock lock(state_->mutex);
  return state_->loss;
}

namespace {

// The process's own sink. spdlog's registry owns it, and lets go of it when the process ends.
std::weak_ptr<LogSink>& OwnSink() {
  static std::weak_ptr<LogSink> sink;
  return sink;
}

struct TlsWatcher {
  base::Mutex mutex;
  std::function<void(const std::string&)> tell PREFIXD_GUARDED_BY(mutex);
};

TlsWatcher& OwnTlsWatcher() {
  static TlsWatcher* const watcher = new TlsWatcher;  // gRPC's threads may outlive main
  return *watcher;
}

// Returns true if gRPC's `message` was of a handshake that failed, and somebody was told.
bool TellTlsRefusal(const std::string& text) {
  if (text.find("Handshake failed") == std::string::npos) return false;
  TlsWatcher& watcher = OwnTlsWatcher();
  base::MutexLock lock(watcher.mutex);
  if (watcher.tell) watcher.tell(text);
  return watcher.tell != nullptr;
}

}  // namespace

void WatchTlsRefusals(std::function<void(const std::string&)> tell) {
  TlsWatcher& watcher = OwnTlsWatcher();
  base::MutexLock lock(watcher.mutex);
  watcher.tell = std::move(tell);
}

void StartLog(const std::string& level) {
  auto sink = std::make_shared<LogSink>(STDERR_FILENO, LogLimits(), ::isatty(STDERR_FILENO) == 1);
  OwnSink() = sink;
  auto logger = std::make_shared<spdlog::logger>("prefixd", std::move(sink));
  logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(std::move(logger));
  TakeLogsOfLibraries(TellTlsRefusal);
}

bool FlushLog(std::chrono::milliseconds limit) {
  const std::shared_ptr<LogSink> sink = OwnSink().lock();
  return sink == nullptr || sink->Flush(limit);
}

LogLoss LostOfLog() {
  const std::shared_ptr<LogSink> sink = OwnSink().lock();
  return sink == nullptr ? LogLoss() : sink->loss();
}

void LastWords(const std::string& line) {
  FlushLog(std::chrono::seconds(1));
  std::string_view left = line;
  const auto until = steady_clock::now() + std::chrono::seconds(1);
  while (!left.empty() && steady_clock::now() < until) {
    if (WritePiece(STDERR_FILENO, &left, until) == Wrote::kNeverWill) return;
  }
}

}  // namespace prefixd::daemon
