// The file system that RocksDB works on: the one below, except that table files of segments are
// written behind (write_behind.h), and that the tail of every table file is checked when it is
// opened (direct_read.h).
#pragma once
#include <memory>

#include "rocksdb/file_system.h"

#include "ssd/segment_store.h"

namespace prefixd::ssd {

std::shared_ptr<rocksdb::FileSystem> TableFilesOver(std::shared_ptr<rocksdb::FileSystem> files,
                                                    OnUnknownFormat on_unknown_format);

}  // namespace prefixd::ssd
