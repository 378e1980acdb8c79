#include "bench/common/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace prefixd::bench {

absl::StatusOr<pid_t> StartProcess(const Command& command) {
  std::vector<char*> arguments;
  for (const std::string& argument : command.arguments) {
    arguments.push_back(const_cast<char*>(argument.c_str()));  // posix_spawn changes nothing
  }
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, command.out.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (command.errors_too) {
    ::posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  }
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return pid;
  return absl::InternalError(
      absl::StrCat("start: ", command.arguments[0], ": ", std::strerror(error)));
}

std::string ThisProgram() { return std::filesystem::read_symlink("/proc/self/exe"); }

std::string ReadText(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace prefixd::bench
