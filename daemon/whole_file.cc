#include "daemon/whole_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace prefixd::daemon {

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file && text << file.rdbuf()) return text.str();
  return absl::FailedPreconditionError(absl::StrCat(path, " cannot be read by user ", geteuid(),
                                                    ": ",
                                                    errno == 0 ? "it is empty" : strerror(errno)));
}

}  // namespace prefixd::daemon
