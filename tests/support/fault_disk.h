// A disk that goes wrong as told: errors, a full disk, slowness, power cuts that lose what was not
// synced, reads that come back damaged. It decides and remembers; fault_files.h puts it under a
// store. Files are real ones; syncs are only noted, so that thousands of cuts take seconds.
//
// Thread-safe. Seeded: one thread's story repeats.
#pragma once
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "base/mutex.h"

namespace prefixd::testing {

class FaultDisk {
 public:
  static constexpr uint64_t kNever = ~uint64_t{0} - 1;
  explicit FaultDisk(uint64_t seed) : random_(seed) {}

  // --- what goes wrong from now on ---
  void FailWrites(int error) PREFIXD_EXCLUDES(mutex_) { FailWrites(error, 0, kNever); }
  // EIO, ENOSPC, 0 = none; `count` changes of the disk, after so many that succeed.
  void FailWrites(int error, uint64_t after, uint64_t count) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    write_error_ = error;
    fail_from_ = changes_ + after;
    fail_count_ = count;
  }
  // ENOSPC beyond so many more bytes; the write that crosses the border is cut short.
  void SetFreeBytes(std::optional<uint64_t> bytes) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    free_bytes_ = bytes;
  }
  void FailReads(double share) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    failing_reads_ = share;
  }
  // Of table files; the next `count` whose turn it is.
  void CorruptReads(double share, uint64_t count = kNever) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    corrupt_reads_ = share;
    corrupt_left_ = count;
  }
  void Slow(std::chrono::microseconds each_write) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    delay_ = each_write;
  }
  void SlowReads(std::chrono::microseconds each) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    read_delay_ = each;
  }
  void FailTables(int error) PREFIXD_EXCLUDES(mutex_) {  // creating files of segments
    base::MutexLock lock(mutex_);
    table_error_ = error;
  }
  // The power goes at the so-manieth change from now: half of a write is made, nothing after it.
  void CutAfter(uint64_t changes) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    cut_at_ = changes_ + changes;
  }
  bool is_off() const PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    return changes_ > cut_at_;
  }
  uint64_t changes() const PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    return changes_;
  }
  // Reads so far, and of each kind.
  enum Damaged { kTorn, kTruncated, kMisplaced, kFlipped, kDamages };
  uint64_t corrupted() const PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    return corrupted_[kTorn] + corrupted_[kTruncated] + corrupted_[kMisplaced] +
           corrupted_[kFlipped];
  }
  uint64_t corrupted(Damaged kind) const PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    return corrupted_[kind];
  }
  uint64_t errors() const PREFIXD_EXCLUDES(mutex_) {  // given back so far
    base::MutexLock lock(mutex_);
    return errors_;
  }

  // The power comes back: of what was written and not synced some is there, some (of table
  // files) is zeros or noise, some is missing; files and names that their folder was not synced for
  // are there or not. Requires: no store is open on the disk.
  void PowerCycle() PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    std::set<const File*> seen;
    for (const auto& [path, file] : files_) {
      if (!std::filesystem::exists(path) || !seen.insert(file.get()).second) continue;
      Lose(path, *file);
    }
    for (const auto& [path, before] : unsynced_names_) {
      if (random_() % 2 == 0) continue;
      std::filesystem::remove(path);
      if (before.has_value()) std::ofstream(path, std::ios::binary) << *before;
    }
    files_.clear();
    unsynced_names_.clear();
    cut_at_ = kNever;
  }

  // --- asked by the files ---
  struct Verdict {
    int error = 0;
    uint64_t bytes = 0;  // of the write: made before the error
  };
  Verdict Write(uint64_t bytes) PREFIXD_EXCLUDES(mutex_) {
    Verdict verdict = Change(bytes);
    base::MutexLock lock(mutex_);
    if (verdict.error != 0 || !free_bytes_.has_value()) return verdict;
    verdict.bytes = std::min(bytes, *free_bytes_);
    *free_bytes_ -= verdict.bytes;
    if (verdict.bytes == bytes) return verdict;
    ++errors_;
    verdict.error = ENOSPC;
    return verdict;
  }
  // Creating, renaming, linking, removing, syncing.
  Verdict Change(uint64_t bytes = 0) PREFIXD_EXCLUDES(mutex_) {
    std::chrono::microseconds delay{0};
    {
      base::MutexLock lock(mutex_);
      ++changes_;
      const bool off = changes_ > cut_at_;
      const bool fails =
          write_error_ != 0 && changes_ > fail_from_ && changes_ - fail_from_ <= fail_count_;
      if (off || fails) ++errors_;
      if (off) return {EIO, changes_ == cut_at_ + 1 ? bytes / 2 : 0};
      if (fails) return {write_error_, bytes / 2};
      delay = delay_;
    }
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    return {0, bytes};
  }
  int TableError() const PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    return table_error_;
  }
  bool ReadFails() PREFIXD_EXCLUDES(mutex_) {
    std::this_thread::sleep_for(ReadDelay());
    base::MutexLock lock(mutex_);
    const bool fails = Chance(failing_reads_);
    errors_ += fails;
    return fails;
  }
  // Damages what was read of a table file, if it is its turn; returns the bytes that came.
  size_t Damage(char* bytes, size_t count) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    if (count == 0 || corrupt_left_ == 0 || !Chance(corrupt_reads_)) return count;
    --corrupt_left_;
    const size_t at = random_() % count;
    const auto kind = static_cast<Damaged>(random_() % kDamages);
    ++corrupted_[kind];
    switch (kind) {
      case kTorn:  // zeros from here
        bytes[at] = static_cast<char>(~bytes[at]);
        std::fill(bytes + at + 1, bytes + count, '\0');
        return count;
      case kTruncated:  // whole pages: Debian's RocksDB has an assertion that a read ends at one
        return at - at % 4096;
      case kMisplaced:  // another part of it in its place
        std::rotate(bytes, bytes + at, bytes + count);
        bytes[at] = static_cast<char>(bytes[at] + 1);
        return count;
      default:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random_() % 8));
        return count;
    }
  }

  // --- told by the files ---
  void Wrote(const std::string& path, uint64_t end) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    File& file = FileOf(path);
    file.written = std::max(file.written, end);
  }
  void Truncated(const std::string& path, uint64_t size) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    File& file = FileOf(path);
    file.written = size;
    file.synced = std::min(file.synced, size);
  }
  void Synced(const std::string& path) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    FileOf(path).synced = FileOf(path).written;
  }
  void Named(const std::string& path, std::optional<std::string> before) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    unsynced_names_.try_emplace(path, std::move(before));
  }
  void Linked(const std::string& from, const std::string& to) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    if (const auto found = files_.find(from); found != files_.end()) files_[to] = found->second;
  }
  void Removed(const std::string& path) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    files_.erase(path);
    unsynced_names_.erase(path);
  }
  void FolderSynced(const std::string& folder) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    std::erase_if(unsynced_names_, [&](const auto& name) {
      return std::filesystem::path(name.first).parent_path() == std::filesystem::path(folder);
    });
  }

 private:
  struct File {
    uint64_t written = 0, synced = 0;
  };

  std::chrono::microseconds ReadDelay() const PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    return read_delay_;
  }
  bool Chance(double share) PREFIXD_REQUIRES(mutex_) {
    return share > 0 && std::uniform_real_distribution<>()(random_) < share;
  }
  File& FileOf(const std::string& path) PREFIXD_REQUIRES(mutex_) {
    std::shared_ptr<File>& file = files_[path];
    if (file == nullptr) file = std::make_shared<File>();
    return *file;
  }
  void Lose(const std::string& path, const File& file) PREFIXD_REQUIRES(mutex_) {
    const uint64_t size = std::filesystem::file_size(path);
    if (std::min(size, file.written) <= file.synced) return;
    const uint64_t kept = file.synced + random_() % (size - file.synced + 1);
    if (truncate(path.c_str(), static_cast<off_t>(kept)) != 0 || kept == file.synced) return;
    // Files that are written past the file system's cache can have a size before they have bytes.
    // Not RocksDB's logs: a manifest that ends in zeros instead of earlier stops it from opening.
    const bool is_table = path.ends_with(".sst") || path.find("/incoming/") != path.npos;
    if (!is_table || random_() % 2 == 0) return;
    const uint64_t from = file.synced + random_() % (kept - file.synced);
    std::string noise(kept - from, '\0');
    if (random_() % 2 == 0)
      std::ranges::generate(noise, [&] { return static_cast<char>(random_()); });
    std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(from));
    stream << noise;
  }

  mutable base::Mutex mutex_;
  std::mt19937_64 random_ PREFIXD_GUARDED_BY(mutex_);
  int write_error_ PREFIXD_GUARDED_BY(mutex_) = 0;
  uint64_t fail_from_ PREFIXD_GUARDED_BY(mutex_) = 0;
  uint64_t fail_count_ PREFIXD_GUARDED_BY(mutex_) = 0;
  std::optional<uint64_t> free_bytes_ PREFIXD_GUARDED_BY(mutex_);
  double failing_reads_ PREFIXD_GUARDED_BY(mutex_) = 0;
  double corrupt_reads_ PREFIXD_GUARDED_BY(mutex_) = 0;
  uint64_t corrupt_left_ PREFIXD_GUARDED_BY(mutex_) = 0;
  std::chrono::microseconds delay_ PREFIXD_GUARDED_BY(mutex_){0};
  std::chrono::microseconds read_delay_ PREFIXD_GUARDED_BY(mutex_){0};
  int table_error_ PREFIXD_GUARDED_BY(mutex_) = 0;
  uint64_t changes_ PREFIXD_GUARDED_BY(mutex_) = 0;
  uint64_t cut_at_ PREFIXD_GUARDED_BY(mutex_) = kNever;
  std::array<uint64_t, kDamages> corrupted_ PREFIXD_GUARDED_BY(mutex_) = {};
  uint64_t errors_ PREFIXD_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::shared_ptr<File>> files_ PREFIXD_GUARDED_BY(mutex_);
  // Created or replaced since their folder was synced; with what stood there before.
  std::map<std::string, std::optional<std::string>> unsynced_names_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::testing
