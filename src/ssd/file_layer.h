// The file system under a store's database. A store opened without one uses the machine's own;
// tests use one whose disk fails.
#pragma once
#include <memory>

#include "rocksdb/env.h"

namespace prefixd::ssd {

struct FileLayer {
  std::unique_ptr<rocksdb::Env> env;  // outlives every store opened with it
};

}  // namespace prefixd::ssd
