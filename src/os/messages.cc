#include "os/messages.h"

#include <unistd.h>

namespace prefixd::os {

MessageReader::~MessageReader() { Next(); }

void MessageReader::Next() {
  for (const int file : files_) close(file);
  files_.clear();
  head_.clear();
  kept_bytes_ = 0;
  sent_bytes_ = dropped_bytes_ = 0;
  dropped_files_ = false;
}

std::vector<int> MessageReader::TakeFiles() { return std::exchange(files_, {}); }

}  // namespace prefixd::os
