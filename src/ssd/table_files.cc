#include "ssd/table_files.h"

#include <string>
#include <utility>

#include "ssd/direct_read.h"
#include "ssd/write_behind.h"

namespace prefixd::ssd {
namespace {

bool IsTable(const std::string& path) { return path.ends_with(".sst"); }

class TableFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  TableFileSystem(std::shared_ptr<rocksdb::FileSystem> files, OnUnknownFormat on_unknown_format)
      : FileSystemWrapper(std::move(files)), on_unknown_format_(std::move(on_unknown_format)) {}
  static const char* kClassName() { return "TableFileSystem"; }
  const char* Name() const override { return kClassName(); }

  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* dbg) override {
    const rocksdb::IOStatus status = FileSystemWrapper::NewWritableFile(path, options, file, dbg);
    // The kernel already writes buffered files behind.
    if (status.ok() && (*file)->use_direct_io()) *file = WriteBehind(std::move(*file));
    return status;
  }
  rocksdb::IOStatus NewRandomAccessFile(const std::string& path,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                        rocksdb::IODebugContext* dbg) override {
    rocksdb::IOStatus status = FileSystemWrapper::NewRandomAccessFile(path, options, file, dbg);
    if (!status.ok() || !IsTable(path)) return status;
    bool unknown = false;
    status = CheckTail(*target(), path, file, &unknown);
    if (unknown && on_unknown_format_) on_unknown_format_(path + " has a later format of tables");
    return status;
  }

 private:
  const OnUnknownFormat on_unknown_format_;
};

}  // namespace

std::shared_ptr<rocksdb::FileSystem> TableFilesOver(std::shared_ptr<rocksdb::FileSystem> files,
                                                    OnUnknownFormat on_unknown_format) {
  return std::make_shared<TableFileSystem>(std::move(files), std::move(on_unknown_format));
}

}  // namespace prefixd::ssd
