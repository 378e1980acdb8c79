// Checks what RocksDB believes without a check when it opens a table file.
//
// RocksDB parses the block of properties before it looks at that block's checksum. A build with
// assertions, such as Debian's, ends the process on one flipped bit there, at every start. So
// CheckTail first reads and verifies the tail of a file, from its properties to its end. Reads of
// the tail are then answered from the verified bytes.
//
// Source of the layout: RocksDB's block-based table, format version 5 (53-byte footer: kind of
// checksum, handles of the metaindex and of the index, padding, version, magic number; a block is
// followed by its compression and a checksum).
#pragma once
#include <memory>
#include <string>

#include "rocksdb/file_system.h"

namespace prefixd::ssd {

// Returns Corruption if the tail is not what RocksDB wrote. Else replaces `*file` by a file over it
// whose tail is what was verified. Reading it is thread-safe if reading `*file` is.
rocksdb::IOStatus CheckTail(rocksdb::FileSystem& files, const std::string& path,
                            std::unique_ptr<rocksdb::FSRandomAccessFile>* file);

}  // namespace prefixd::ssd
