// The file system that RocksDB works on: the one below, except that table files of segments are
// written behind (write_behind.h), and that the tail of every table file is checked when it is
// opened (table_tail.h).
#pragma once
#include <memory>

#include "rocksdb/file_system.h"

namespace prefixd::ssd {

std::shared_ptr<rocksdb::FileSystem> TableFilesOver(std::shared_ptr<rocksdb::FileSystem> files);

}  // namespace prefixd::ssd
