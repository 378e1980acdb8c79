// What the files of a store's database go through. A store opened without one uses the machine's
// own file system; tests put a disk that fails under it.
#pragma once
#include <memory>

#include "rocksdb/env.h"

namespace prefixd::ssd {

struct FileLayer {
  std::unique_ptr<rocksdb::Env> env;  // outlives every store that was opened with it
};

}  // namespace prefixd::ssd
