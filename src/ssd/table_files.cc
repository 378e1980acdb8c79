#include "ssd/table_files.h"

#include <string>
#include <utility>

#include "ssd/table_tail.h"
#include "ssd/write_behind.h"

namespace prefixd::ssd {
namespace {

bool IsTable(const std::string& path) { return path.ends_with(".sst"); }

class TableFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  explicit TableFileSystem(std::shared_ptr<rocksdb::FileSystem> files)
      : FileSystemWrapper(std::move(files)) {}
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
    const rocksdb::IOStatus status =
        FileSystemWrapper::NewRandomAccessFile(path, options, file, dbg);
    return status.ok() && IsTable(path) ? CheckTail(*target(), path, file) : status;
  }
};

}  // namespace

std::shared_ptr<rocksdb::FileSystem> TableFilesOver(std::shared_ptr<rocksdb::FileSystem> files) {
  return std::make_shared<TableFileSystem>(std::move(files));
}

}  // namespace prefixd::ssd
