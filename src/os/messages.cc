#include "os/messages.h"

#include <unistd.h>

namespace prefixd::os {

MessageReader::~MessageReader() {
  for (const int file : files_) close(file);
}

std::vector<int> MessageReader::TakeFiles() { return std::exchange(files_, {}); }

}  // namespace prefixd::os
