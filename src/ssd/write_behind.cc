#include "ssd/write_behind.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/mutex.h"

namespace prefixd::ssd {
namespace {

using rocksdb::IOStatus;

struct Free {
  void operator()(char* data) const { std::free(data); }
};

class WriteBehindFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  using Slice = rocksdb::Slice;
  using IOOptions = rocksdb::IOOptions;
  using Context = rocksdb::IODebugContext;
  using Verification = rocksdb::DataVerificationInfo;

  explicit WriteBehindFile(std::unique_ptr<rocksdb::FSWritableFile> file)
      : FSWritableFileOwnerWrapper(std::move(file)) {}
  ~WriteBehindFile() override { StopThread(); }

  // Lets RocksDB hand over what it has, of any size and at any address.
  bool use_direct_io() const override { return false; }
  size_t GetRequiredBufferAlignment() const override { return 1; }

  IOStatus Append(const Slice& data, const IOOptions&, Context*) override {
    size_t done = 0;
    while (done < data.size()) {
      if (current_.data == nullptr) {
        const IOStatus status = Take(&current_);
        if (!status.ok()) return status;
      }
      const size_t count =
          std::min<size_t>(data.size() - done, kWriteBehindBufferBytes - current_.bytes);
      std::memcpy(current_.data.get() + current_.bytes, data.data() + done, count);
      current_.bytes += count;
      done += count;
      size_ += count;
      if (current_.bytes == kWriteBehindBufferBytes) Queue();
    }
    return Error();
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const Verification&,
                  Context* dbg) override {
    return Append(data, options, dbg);
  }
  IOStatus Flush(const IOOptions&, Context*) override { return Error(); }
  IOStatus Sync(const IOOptions& options, Context* dbg) override {
    const IOStatus status = WriteOut(options, dbg);
    return status.ok() ? FSWritableFileOwnerWrapper::Sync(options, dbg) : status;
  }
  IOStatus Fsync(const IOOptions& options, Context* dbg) override {
    const IOStatus status = WriteOut(options, dbg);
    return status.ok() ? FSWritableFileOwnerWrapper::Fsync(options, dbg) : status;
  }
  IOStatus RangeSync(uint64_t, uint64_t, const IOOptions&, Context*) override {
    return IOStatus::OK();
  }
  IOStatus InvalidateCache(size_t, size_t) override { return IOStatus::OK(); }
  uint64_t GetFileSize(const IOOptions&, Context*) override { return size_; }
  IOStatus Close(const IOOptions& options, Context* dbg) override {
    const IOStatus written = WriteOut(options, dbg);
    StopThread();
    const IOStatus closed = FSWritableFileOwnerWrapper::Close(options, dbg);
    return written.ok() ? closed : written;
  }

 private:
  struct Buffer {
    std::unique_ptr<char, Free> data;
    size_t bytes = 0;
    uint64_t offset = 0;  // in the file
  };

  // Takes a free buffer: makes one while there are too few, else waits for one. Returns the first
  // error.
  IOStatus Take(Buffer* buffer) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    if (idle_.empty() && made_ < kWriteBehindBuffers) {
      void* memory =
          std::aligned_alloc(base_->GetRequiredBufferAlignment(), kWriteBehindBufferBytes);
      if (memory == nullptr) throw std::bad_alloc();
      ++made_;
      idle_.push_back({.data = std::unique_ptr<char, Free>(static_cast<char*>(memory))});
    }
    while (idle_.empty()) changed_.Wait(mutex_);
    *buffer = std::move(idle_.back());
    idle_.pop_back();
    buffer->bytes = 0;
    buffer->offset = size_;
    return error_;
  }
  void Queue() PREFIXD_EXCLUDES(mutex_) {
    if (!HasThread()) return WriteHere();
    base::MutexLock lock(mutex_);
    queued_.push_back(std::move(current_));
    current_ = {};
    changed_.NotifyAll();
  }
  // Starts the thread if need be. Returns false if the system gives none.
  bool HasThread() {
    if (thread_.joinable()) return true;
    try {
      thread_ = std::thread([this] { WriteQueued(); });
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }
  void WriteHere() PREFIXD_EXCLUDES(mutex_) {
    const IOStatus status = Error().ok() ? Write(current_) : IOStatus::OK();
    base::MutexLock lock(mutex_);
    if (error_.ok()) error_ = status;
    idle_.push_back(std::move(current_));
    current_ = {};
  }
  void WriteQueued() PREFIXD_EXCLUDES(mutex_) {
    for (;;) {
      Buffer buffer;
      {
        base::MutexLock lock(mutex_);
        while (queued_.empty() && !stop_) changed_.Wait(mutex_);
        if (queued_.empty()) return;
        buffer = std::move(queued_.front());
        queued_.pop_front();
        writing_ = true;
      }
      const IOStatus status = Error().ok() ? Write(buffer) : IOStatus::OK();
      base::MutexLock lock(mutex_);
      if (error_.ok()) error_ = status;
      idle_.push_back(std::move(buffer));
      writing_ = false;
      changed_.NotifyAll();
    }
  }
  // Writes whole sectors. WriteOut cuts off what the last one holds behind the bytes.
  IOStatus Write(const Buffer& buffer) {
    const size_t whole = base::AlignUp(buffer.bytes, base_->GetRequiredBufferAlignment());
    std::memset(buffer.data.get() + buffer.bytes, 0, whole - buffer.bytes);
    return base_->PositionedAppend(Slice(buffer.data.get(), whole), buffer.offset, {}, nullptr);
  }
  // Writes everything appended into the file and makes the file as long as that. More may be
  // appended afterwards.
  IOStatus WriteOut(const IOOptions& options, Context* dbg) PREFIXD_EXCLUDES(mutex_) {
    {
      base::MutexLock lock(mutex_);
      while (!queued_.empty() || writing_) changed_.Wait(mutex_);
      if (!error_.ok()) return error_;
    }
    // Close comes after Sync, with nothing new to write.
    if (current_.bytes == 0 || written_out_ == size_) return IOStatus::OK();
    IOStatus status = Write(current_);
    if (status.ok()) status = FSWritableFileOwnerWrapper::Truncate(size_, options, dbg);
    written_out_ = size_;
    base::MutexLock lock(mutex_);
    error_ = status;
    return status;
  }
  IOStatus Error() PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    return error_;
  }
  void StopThread() PREFIXD_EXCLUDES(mutex_) {
    {
      base::MutexLock lock(mutex_);
      stop_ = true;
      changed_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
  }

  rocksdb::FSWritableFile* const base_ = target();
  Buffer current_;            // being filled
  uint64_t size_ = 0;         // of everything appended
  uint64_t written_out_ = 0;  // size_ when WriteOut last wrote
  std::thread thread_;

  base::Mutex mutex_;
  base::CondVar changed_;
  std::deque<Buffer> queued_ PREFIXD_GUARDED_BY(mutex_);
  std::vector<Buffer> idle_ PREFIXD_GUARDED_BY(mutex_);
  int made_ PREFIXD_GUARDED_BY(mutex_) = 0;
  bool writing_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool stop_ PREFIXD_GUARDED_BY(mutex_) = false;
  IOStatus error_ PREFIXD_GUARDED_BY(mutex_);  // the first
};

}  // namespace

std::unique_ptr<rocksdb::FSWritableFile> WriteBehind(
    std::unique_ptr<rocksdb::FSWritableFile> file) {
  return std::make_unique<WriteBehindFile>(std::move(file));
}

}  // namespace prefixd::ssd
