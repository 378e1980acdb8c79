#include "ssd/table_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <ctime>

#include "base/mutex.h"

namespace prefixd::ssd {
namespace {

constexpr uint64_t kMaxLogBytes = 1 << 20;
constexpr size_t kMaxLine = 2048;

class TableLog final : public rocksdb::Logger {
 public:
  explicit TableLog(const std::string& directory)
      : rocksdb::Logger(rocksdb::InfoLogLevel::WARN_LEVEL), path_(directory + "/LOG") {
    base::MutexLock lock(mutex_);
    Roll();
  }
  ~TableLog() override {
    if (fd_ >= 0) close(fd_);
  }

  using rocksdb::Logger::Logv;
  void Logv(const char* format, std::va_list arguments) override {
    std::array<char, kMaxLine> line;
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    gmtime_r(&now, &parts);
    size_t length = std::strftime(line.data(), line.size(), "%Y-%m-%dT%H:%M:%SZ ", &parts);
    const int wanted =
        std::vsnprintf(line.data() + length, line.size() - length - 1, format, arguments);
    if (wanted < 0) return;
    length = std::min(length + static_cast<size_t>(wanted), line.size() - 2);
    if (line[length - 1] != '\n') line[length++] = '\n';
    base::MutexLock lock(mutex_);
    if (written_ + length > kMaxLogBytes) Roll();
    if (fd_ >= 0 && write(fd_, line.data(), length) > 0) written_ += length;
  }
  // Drops the options that RocksDB logs at each start: they stand in a file of their own.
  void LogHeader(const char*, std::va_list) override {}
  size_t GetLogFileSize() const override { return 0; }

 private:
  void Roll() PREFIXD_REQUIRES(mutex_) {
    if (fd_ >= 0) close(fd_);
    rename(path_.c_str(), (path_ + ".old").c_str());
    fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    written_ = 0;
  }

  const std::string path_;
  base::Mutex mutex_;
  int fd_ PREFIXD_GUARDED_BY(mutex_) = -1;  // owned; -1: the file cannot be written
  uint64_t written_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

class SilentLog final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, std::va_list) override {}
};

}  // namespace

std::shared_ptr<rocksdb::Logger> OpenTableLog(const std::string& directory) {
  return std::make_shared<TableLog>(directory);
}

std::shared_ptr<rocksdb::Logger> NoTableLog() { return std::make_shared<SilentLog>(); }

}  // namespace prefixd::ssd
