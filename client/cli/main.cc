// prefixctl: the command line of prefixd, for people and scripts.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "client/cli/commands.h"

int main(int argc, char** argv) {
  ::setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // prefixctl reports errors itself
  prefixd::cli::Surroundings surroundings;
  for (const char* name : {"PREFIXD_SERVER", "PREFIXD_ADMIN", "PREFIXD_TOKEN_FILE", "PREFIXD_SALT",
                           "XDG_RUNTIME_DIR", "COLUMNS"}) {
    if (const char* value = std::getenv(name)) surroundings.environment[name] = value;
  }
  surroundings.exists = [](const std::string& path) {
    std::error_code error;
    return std::filesystem::exists(path, error);
  };
  surroundings.writable = [](const std::string& path) { return ::access(path.c_str(), W_OK) == 0; };
  const bool can_ask = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1;
  return prefixd::cli::RunPrefixctl(
      {argv + 1, argv + argc}, surroundings,
      {.in = std::cin, .out = std::cout, .err = std::cerr, .can_ask = can_ask});
}
