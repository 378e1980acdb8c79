// The log's last step: lines that threads hand in are written by a thread of its own. Whoever logs
// never waits for whoever reads: when the queue is full a line is dropped and counted, and of one
// message only so many lines a second pass; the rest is told as a number.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
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

// Two lines are of one message when they have the same words before the first number, quote or
// equals sign; at most 48 bytes of them count.
std::string_view MessageOf(std::string_view line);

// What was left out since the process began.
struct LogLoss {
  uint64_t dropped = 0;  // lines: the queue was full
  uint64_t limited = 0;  // lines of a message that came too often
};

// Thread-safe. The destructor waits for what is queued for `at_exit` at most.
class LogSink final : public spdlog::sinks::sink {
 public:
  // Writes to `fd`, which stays the caller's and must stay open until the process ends: a thread
  // may be writing to it for ever. `color`: levels are coloured, as for a terminal.
  LogSink(int fd, const LogLimits& limits, bool color = false);
  ~LogSink() override;
  LogSink(const LogSink&) = delete;
  LogSink& operator=(const LogSink&) = delete;

  void log(const spdlog::details::log_msg& message) override;
  // Does not wait; Flush does.
  void flush() override {}
  void set_pattern(const std::string& pattern) override;
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override;

  // Waits until everything that was handed in is written; false after `limit`.
  bool Flush(std::chrono::milliseconds limit);
  LogLoss loss() const;

 private:
  struct State;
  const std::chrono::milliseconds at_exit_;
  const std::shared_ptr<State> state_;  // with the thread, which may outlive this
};

// Makes the process's log one on stderr, at `level` (a checked --log-level).
void StartLog(const std::string& level);
// Both speak of that log; they do nothing when it was not started.
bool FlushLog(std::chrono::milliseconds limit);
LogLoss LostOfLog();
// A line to stderr for the end of a process: waits for its reader a second at most.
void LastWords(const std::string& line);

}  // namespace prefixd::daemon
