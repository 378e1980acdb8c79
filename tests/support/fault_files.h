// RocksDB's file system over a FaultDisk: what a store opened with it reads and writes goes through
// the disk's decisions.
#pragma once
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "rocksdb/env.h"
#include "rocksdb/file_system.h"

#include "ssd/file_layer.h"
#include "tests/support/fault_disk.h"

namespace prefixd::testing {

using DiskPtr = std::shared_ptr<FaultDisk>;

inline rocksdb::IOStatus Failed(int error) {
  if (error == 0) return rocksdb::IOStatus::OK();
  if (error == ENOSPC) {  // as RocksDB's own file system says it
    rocksdb::IOStatus status = rocksdb::IOStatus::NoSpace("injected", strerror(error));
    status.SetRetryable(true);
    return status;
  }
  return rocksdb::IOStatus::IOError("injected", strerror(error));
}

class FaultWritable final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  using IOStatus = rocksdb::IOStatus;
  using IOOptions = rocksdb::IOOptions;
  using Slice = rocksdb::Slice;
  using Context = rocksdb::IODebugContext;
  using Verification = rocksdb::DataVerificationInfo;
  FaultWritable(std::unique_ptr<rocksdb::FSWritableFile> file, std::string path, DiskPtr disk,
                uint64_t size)
      : FSWritableFileOwnerWrapper(std::move(file)),
        path_(std::move(path)),
        disk_(std::move(disk)),
        size_(size) {}

  IOStatus Append(const Slice& data, const IOOptions& options, Context* dbg) override {
    const FaultDisk::Verdict verdict = disk_->Write(data.size());
    const Slice made(data.data(), static_cast<size_t>(verdict.bytes));
    if (!made.empty() && !use_direct_io()) {  // direct: whole pages only
      const IOStatus status = FSWritableFileOwnerWrapper::Append(made, options, dbg);
      if (!status.ok()) return status;
      Grow(size_ + made.size());
    }
    return Failed(verdict.error);
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const Verification&,
                  Context* dbg) override {
    return Append(data, options, dbg);
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            Context* dbg) override {
    const FaultDisk::Verdict verdict = disk_->Write(data.size());
    const size_t sector = GetRequiredBufferAlignment();
    const Slice made(data.data(), static_cast<size_t>(verdict.bytes) / sector * sector);
    if (!made.empty()) {
      const IOStatus status =
          FSWritableFileOwnerWrapper::PositionedAppend(made, offset, options, dbg);
      if (!status.ok()) return status;
      Grow(offset + made.size());
    }
    return Failed(verdict.error);
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            const Verification&, Context* dbg) override {
    return PositionedAppend(data, offset, options, dbg);
  }
  IOStatus Truncate(uint64_t size, const IOOptions& options, Context* dbg) override {
    if (const int error = disk_->Change().error) return Failed(error);
    size_ = size;
    disk_->Truncated(path_, size);
    return FSWritableFileOwnerWrapper::Truncate(size, options, dbg);
  }
  IOStatus Sync(const IOOptions&, Context*) override {
    if (const int error = disk_->Change().error) return Failed(error);
    disk_->Synced(path_);
    return IOStatus::OK();
  }
  IOStatus Fsync(const IOOptions& options, Context* dbg) override { return Sync(options, dbg); }
  IOStatus RangeSync(uint64_t, uint64_t, const IOOptions&, Context*) override {
    return IOStatus::OK();
  }

 private:
  void Grow(uint64_t end) {
    size_ = std::max(size_, end);
    disk_->Wrote(path_, size_);
  }

  const std::string path_;
  const DiskPtr disk_;
  uint64_t size_;
};

class FaultReadable final : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  FaultReadable(std::unique_ptr<rocksdb::FSRandomAccessFile> file, bool is_table, DiskPtr disk)
      : FSRandomAccessFileOwnerWrapper(std::move(file)),
        is_table_(is_table),
        disk_(std::move(disk)) {}
  rocksdb::IOStatus Read(uint64_t offset, size_t n, const rocksdb::IOOptions& options,
                         rocksdb::Slice* result, char* scratch,
                         rocksdb::IODebugContext* dbg) const override {
    if (disk_->ReadFails()) return Failed(EIO);
    const rocksdb::IOStatus status =
        FSRandomAccessFileOwnerWrapper::Read(offset, n, options, result, scratch, dbg);
    if (status.ok() && is_table_) {
      *result = {scratch, disk_->Damage(scratch, result->size())};
    }
    return status;
  }
  rocksdb::IOStatus MultiRead(rocksdb::FSReadRequest* requests, size_t count,
                              const rocksdb::IOOptions& options,
                              rocksdb::IODebugContext* dbg) override {
    for (size_t i = 0; i < count; ++i) {
      rocksdb::FSReadRequest& one = requests[i];
      one.status = Read(one.offset, one.len, options, &one.result, one.scratch, dbg);
    }
    return rocksdb::IOStatus::OK();
  }

 private:
  const bool is_table_;
  const DiskPtr disk_;
};

class FaultFolder final : public rocksdb::FSDirectoryWrapper {
 public:
  FaultFolder(std::unique_ptr<rocksdb::FSDirectory> folder, std::string path, DiskPtr disk)
      : FSDirectoryWrapper(std::move(folder)), path_(std::move(path)), disk_(std::move(disk)) {}
  rocksdb::IOStatus Fsync(const rocksdb::IOOptions&, rocksdb::IODebugContext*) override {
    if (const int error = disk_->Change().error) return Failed(error);
    disk_->FolderSynced(path_);
    return rocksdb::IOStatus::OK();
  }
  rocksdb::IOStatus FsyncWithDirOptions(const rocksdb::IOOptions& options,
                                        rocksdb::IODebugContext* dbg,
                                        const rocksdb::DirFsyncOptions&) override {
    return Fsync(options, dbg);
  }

 private:
  const std::string path_;
  const DiskPtr disk_;
};

class FaultFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  using IOStatus = rocksdb::IOStatus;
  using IOOptions = rocksdb::IOOptions;
  using FileOptions = rocksdb::FileOptions;
  using Context = rocksdb::IODebugContext;
  using Writable = std::unique_ptr<rocksdb::FSWritableFile>;
  explicit FaultFileSystem(DiskPtr disk)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), disk_(std::move(disk)) {}
  static const char* kClassName() { return "FaultFileSystem"; }
  const char* Name() const override { return kClassName(); }

  IOStatus NewWritableFile(const std::string& path, const FileOptions& options, Writable* file,
                           Context* dbg) override {
    if (const int error = disk_->Change().error) return Failed(error);
    const bool table = path.ends_with(".pages") || path.ends_with(".records");
    const int table_error = table ? disk_->TableError() : 0;
    if (table_error != 0) return Failed(table_error);
    const IOStatus status = FileSystemWrapper::NewWritableFile(path, options, file, dbg);
    if (!status.ok()) return status;
    disk_->Named(path, std::nullopt);
    disk_->Truncated(path, 0);
    *file = std::make_unique<FaultWritable>(std::move(*file), path, disk_, 0);
    return status;
  }
  IOStatus ReopenWritableFile(const std::string& path, const FileOptions& options, Writable* file,
                              Context* dbg) override {
    if (const int error = disk_->Change().error) return Failed(error);
    const IOStatus status = FileSystemWrapper::ReopenWritableFile(path, options, file, dbg);
    if (!status.ok()) return status;
    const uint64_t size = std::filesystem::file_size(path);
    *file = std::make_unique<FaultWritable>(std::move(*file), path, disk_, size);
    return status;
  }
  IOStatus NewRandomAccessFile(const std::string& path, const FileOptions& options,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                               Context* dbg) override {
    const IOStatus status = FileSystemWrapper::NewRandomAccessFile(path, options, file, dbg);
    if (!status.ok()) return status;
    *file = std::make_unique<FaultReadable>(std::move(*file), path.ends_with(".sst"), disk_);
    return status;
  }
  IOStatus NewDirectory(const std::string& path, const IOOptions& options,
                        std::unique_ptr<rocksdb::FSDirectory>* folder, Context* dbg) override {
    const IOStatus status = FileSystemWrapper::NewDirectory(path, options, folder, dbg);
    if (!status.ok()) return status;
    *folder = std::make_unique<FaultFolder>(std::move(*folder), path, disk_);
    return status;
  }
  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions& options,
                      Context* dbg) override {
    if (const int error = disk_->Change().error) return Failed(error);
    disk_->Named(to, Load(to));
    disk_->Linked(from, to);
    disk_->Removed(from);
    return FileSystemWrapper::RenameFile(from, to, options, dbg);
  }
  IOStatus LinkFile(const std::string& from, const std::string& to, const IOOptions& options,
                    Context* dbg) override {
    if (const int error = disk_->Change().error) return Failed(error);
    disk_->Named(to, std::nullopt);
    disk_->Linked(from, to);
    return FileSystemWrapper::LinkFile(from, to, options, dbg);
  }
  IOStatus DeleteFile(const std::string& path, const IOOptions& options, Context* dbg) override {
    if (const int error = disk_->Change().error) return Failed(error);
    disk_->Removed(path);
    return FileSystemWrapper::DeleteFile(path, options, dbg);
  }

 private:
  static std::optional<std::string> Load(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return std::nullopt;
    return std::string{std::istreambuf_iterator<char>(file), {}};
  }
  const DiskPtr disk_;
};

// For SegmentStore::Options::files and cache::Options::ssd_files.
inline std::shared_ptr<ssd::FileLayer> FilesOn(const DiskPtr& disk) {
  auto layer = std::make_shared<ssd::FileLayer>();
  layer->env = rocksdb::NewCompositeEnv(std::make_shared<FaultFileSystem>(disk));
  return layer;
}

}  // namespace prefixd::testing
