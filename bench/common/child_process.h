// Starting other programs. Works in a process that uses gRPC, which fork() does not.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace prefixd::bench {

struct Command {
  std::vector<std::string> arguments;  // the program's path first
  std::string out;                     // standard output is appended to this file
  bool errors_too = false;             // standard error as well
};
// The caller waits for the process.
absl::StatusOr<pid_t> StartProcess(const Command& command);

std::string ThisProgram();                      // its path
std::string ReadText(const std::string& path);  // empty when it cannot be read

}  // namespace prefixd::bench
