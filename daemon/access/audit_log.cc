#include "daemon/access/audit_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "spdlog/spdlog.h"

namespace prefixd::daemon {
namespace {

// Sums, which programs ask for all the time, and settings.
constexpr std::array<std::string_view, 2> kNotAudited = {"Admin.GetStats", "Admin.GetConfig"};
constexpr size_t kMostKeys = 1024;  // remembered at a time

}  // namespace

bool IsAudited(std::string_view verb) {
  return verb.starts_with("Admin.") && std::ranges::find(kNotAudited, verb) == kNotAudited.end();
}

absl::StatusOr<std::shared_ptr<AuditLog>> AuditLog::Open(const std::string& path,
                                                         const base::Clock* clock) {
  const int file =
      path.empty()
          ? -1
          : ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (!path.empty() && file < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("audit-log: ", path, " cannot be opened: ", std::strerror(errno)));
  }
  return std::shared_ptr<AuditLog>(new AuditLog(path, file, clock));
}

AuditLog::~AuditLog() {
  {
    base::MutexLock lock(mutex_);
    TellLeftOut(true);
  }
  if (file_ >= 0) ::close(file_);
}

void AuditLog::WriteNow(const std::string& line) const {
  spdlog::info("audit: {}", line);
  if (file_ < 0) return;
  const std::string text = absl::StrCat(
      absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", absl::FromUnixMicros(clock_->UnixMicros()),
                       absl::UTCTimeZone()),
      " audit: ", line, "\n");
  if (::write(file_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    spdlog::warn("audit-log: {} cannot be written: {}", path_, std::strerror(errno));
  }
}

void AuditLog::Write(const std::string& line) {
  base::MutexLock lock(mutex_);
  if (left_out_ > 0) TellLeftOut(false);
  WriteNow(line);
}

void AuditLog::Refill(Refusals* refusals, int64_t now_us) const {
  const auto passed = static_cast<double>(std::max<int64_t>(0, now_us - refusals->at_us));
  refusals->left =
      std::min<double>(kRefusalsAtOnce, refusals->left + passed / double{kRefusalEveryUs});
  refusals->at_us = now_us;
}

void AuditLog::TellLeftOut(bool all) {
  const int64_t now_us = clock_->MonotonicMicros();
  for (auto& [key, refusals] : refusals_) {
    if (refusals.left_out == 0) continue;
    Refill(&refusals, now_us);
    if (!all && refusals.left < 1) continue;
    refusals.left -= 1;
    WriteNow(absl::StrCat(refusals.left_out, " more lines of ", key.first, " were left out, ",
                          key.second));
    left_out_ -= refusals.left_out;
    refusals.left_out = 0;
  }
}

// A caller whose lines are due again is as one who was never refused.
void AuditLog::ForgetOld(int64_t now_us) {
  if (refusals_.size() > kMostKeys) {
    TellLeftOut(true);
    refusals_.clear();
  }
  if (steps_.size() <= kMostKeys) return;
  std::erase_if(steps_,
                [now_us](const auto& step) { return now_us - step.second > kStepsWithinUs; });
  if (steps_.size() > kMostKeys) steps_.clear();
}

void AuditLog::WriteRefusal(const std::string& who, const std::string& reason,
                            const std::string& line) {
  base::MutexLock lock(mutex_);
  const int64_t now_us = clock_->MonotonicMicros();
  ForgetOld(now_us);
  Refusals& refusals =
      refusals_.try_emplace(Key(who, reason), Refusals{.at_us = now_us}).first->second;
  Refill(&refusals, now_us);
  if (refusals.left < 1) {
    ++refusals.left_out;
    ++left_out_;
    return;
  }
  if (left_out_ > 0) TellLeftOut(false);
  refusals.left = std::max(0.0, refusals.left - 1);
  WriteNow(line);
}

void AuditLog::WriteStep(const Step& step, const std::string& line) {
  base::MutexLock lock(mutex_);
  const int64_t now_us = clock_->MonotonicMicros();
  ForgetOld(now_us);
  const auto [last, is_new] = steps_.try_emplace(Key(step.who, step.work), now_us);
  const bool goes_on = !step.is_first && !is_new && now_us - last->second <= kStepsWithinUs;
  last->second = now_us;
  if (!goes_on) WriteNow(line);
}

}  // namespace prefixd::daemon
