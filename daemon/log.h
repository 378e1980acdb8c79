// The log's last step: a thread of its own writes the lines that other threads log. A thread that
// logs never waits for the log's reader: if the queue is full, its line is dropped and counted. Of
// one message only so many lines a second pass; the rest is reported as a number.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "spdlog/sinks/sink.h"

namespace prefixd::daemon {

struct LogLimits {
  size_t queue_lines = 8192;
  size_t queue_bytes = size_t{2} << 20;
  // One message may write so many lines at once, then so many a second.
  double burst = 200;
  double per_second = 10;
  // How long the end of the process waits for the lines that are left.
  std::chrono::milliseconds at_exit{1'000};
};

// Returns the message that a line is of: its text before the first digit, quote or equals sign, at
// most 48 bytes of it.
std::string_view MessageOf(std::string_view line);

// What was left out since the process began.
struct LogLoss {
  uint64_t dropped = 0;  // lines that found the queue full
  uint64_t limited = 0;  // lines of a message that came too often
};

// Thread-safe. The destructor waits for the queued lines, for `at_exit` at most.
class LogSink final : public spdlog::sinks::sink {
 public:
  // Writes to `fd`, which the caller owns and must keep open until the process ends: the sink's
  // thread may be writing to it for ever. `color`: levels are coloured, as for a terminal.
  LogSink(int fd, const LogLimits& limits, bool color = false);
  ~LogSink() override;
  LogSink(const LogSink&) = delete;
  LogSink& operator=(const LogSink&) = delete;

  void log(const spdlog::details::log_msg& message) override;
  // Does not wait; Flush does.
  void flush() override {}
  void set_pattern(const std::string& pattern) override;
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override;

  // Waits until every queued line is written. Returns false if `limit` passes first.
  bool Flush(std::chrono::milliseconds limit);
  LogLoss loss() const;

 private:
  struct State;
  const std::chrono::milliseconds at_exit_;
  const std::shared_ptr<State> state_;  // shared with the thread, which may outlive this
};

// Starts the process's log, on stderr, at `level` (a checked --log-level).
void StartLog(const std::string& level);
// LogSink::Flush and loss of that log; true and zeros if it was not started.
bool FlushLog(std::chrono::milliseconds limit);
LogLoss LostOfLog();
// Writes a line to stderr at the end of a process. Waits for the log, and then for stderr's reader,
// a second each at most.
void LastWords(const std::string& line);

// Calls `tell` for each TLS handshake that fails, with gRPC's words, instead of logging them; it
// must not wait. nullptr: logs them again. When this returns, no call of what was given before
// runs.
void WatchTlsRefusals(std::function<void(const std::string& why)> tell);

}  // namespace prefixd::daemon
