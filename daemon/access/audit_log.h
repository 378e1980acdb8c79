// The audit log: lines of who did what, to the log and to a file if there is one:
//
//   2027-01-01T00:00:00.000Z audit: Admin.Clear by user 1000 (process 12 of user 1000):
//   space_id: "..." purge: true: OK
//
// What one caller can repeat is bounded, and what was left out is counted in a line of its own.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

#include "base/clock.h"
#include "base/mutex.h"

namespace prefixd::daemon {

// Thread-safe. A file that cannot be written any more is told in the log, which has the lines.
class AuditLog {
 public:
  static constexpr int kRefusalsAtOnce = 10;  // lines of one caller and reason; then one each
  static constexpr int64_t kRefusalEveryUs = 10'000'000;
  static constexpr int64_t kStepsWithinUs = int64_t{3600} * 1'000'000;

  // Opens the file for appending, mode 0600; an empty path: no file. FailedPrecondition names it.
  static absl::StatusOr<std::shared_ptr<AuditLog>> Open(
      const std::string& path, const base::Clock* clock = &base::SystemClock::Get());
  ~AuditLog();  // writes what was left out
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  void Write(const std::string& line) PREFIXD_EXCLUDES(mutex_);
  // Writes the line of a refusal. Of one `who` and `reason` it leaves out what exceeds the rate
  // above; how many stands in a later line.
  void WriteRefusal(const std::string& who, const std::string& reason, const std::string& line)
      PREFIXD_EXCLUDES(mutex_);
  // Writes the line of a step of long work: of its first step, and of a later one if `who` had no
  // step of the same `work` within kStepsWithinUs. So one line stands for all steps.
  struct Step {
    std::string who, work;
    bool is_first = true;
  };
  void WriteStep(const Step& step, const std::string& line) PREFIXD_EXCLUDES(mutex_);

 private:
  using Key = std::pair<std::string, std::string>;
  struct Refusals {
    double left = kRefusalsAtOnce;  // lines that may be written now
    int64_t at_us = 0;              // when `left` was computed
    uint64_t left_out = 0;
  };

  AuditLog(std::string path, int file, const base::Clock* clock)
      : path_(std::move(path)), file_(file), clock_(clock) {}
  void WriteNow(const std::string& line) const;
  void Refill(Refusals* refusals, int64_t now_us) const;
  // Writes how many lines were left out, of those who may have a line again; `all`: of everybody.
  void TellLeftOut(bool all) PREFIXD_REQUIRES(mutex_);
  void ForgetOld(int64_t now_us) PREFIXD_REQUIRES(mutex_);

  const std::string path_;
  const int file_;  // -1 = none
  const base::Clock* const clock_;
  base::Mutex mutex_;
  std::map<Key, Refusals> refusals_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t left_out_ PREFIXD_GUARDED_BY(mutex_) = 0;         // of all
  std::map<Key, int64_t> steps_ PREFIXD_GUARDED_BY(mutex_);  // when the last one was
};

// Returns true if calls of `verb` ("Admin.Clear") are written down, however they end.
bool IsAudited(std::string_view verb);

}  // namespace prefixd::daemon
