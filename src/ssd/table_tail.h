// What RocksDB believes without a check when it opens a table file, checked.
//
// It parses the block of properties before it looks at that block's checksum, and a build with
// assertions, as Debian's, ends the process on one flipped bit there, at every start. So the tail
// of a file, from its properties to its end, is read and verified first, and reads of it are
// answered from the bytes that were verified.
//
// Source of the layout: RocksDB's block-based table, format version 5 (53-byte footer: kind of
// checksum, handles of the metaindex and of the index, padding, version, magic number; a block is
// followed by its compression and a checksum).
#pragma once
#include <memory>
#include <string>

#include "rocksdb/file_system.h"

namespace prefixd::ssd {

// Corruption when the tail is not what RocksDB wrote; `file` is the file behind, and is returned
// with its tail replaced by what was verified. Thread-safe to read, as `file` is.
rocksdb::IOStatus CheckTail(rocksdb::FileSystem& files, const std::string& path,
                            std::unique_ptr<rocksdb::FSRandomAccessFile>* file);

}  // namespace prefixd::ssd
