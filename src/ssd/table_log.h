// RocksDB's log of warnings and errors, in the files LOG and LOG.old of its directory.
//
// RocksDB's own logger ends the process in an assertion when the disk is full: it appends to a file
// that refused an append before. This one drops the line.
#pragma once
#include <memory>
#include <string>

#include "rocksdb/env.h"

namespace prefixd::ssd {

// Thread-safe. Each file holds at most 1 MiB. Lines for a file that cannot be written are dropped.
std::shared_ptr<rocksdb::Logger> OpenTableLog(const std::string& directory);
// Returns a log that drops every line and makes no file.
std::shared_ptr<rocksdb::Logger> NoTableLog();

}  // namespace prefixd::ssd
