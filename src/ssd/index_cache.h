// A block cache for index blocks alone. Values are read once and would push index blocks out; where
// RocksDB keeps a value all the same (the first and the last of a file that it takes over, since
// version 8), a check of the disk would read memory.
#pragma once
#include <cstddef>
#include <memory>

#include "rocksdb/cache.h"

namespace prefixd::ssd {

std::shared_ptr<rocksdb::Cache> NewIndexCache(size_t bytes);

}  // namespace prefixd::ssd
