// The real daemon in a process of its own, started, signalled and read.
#pragma once
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "daemon/config.h"
#include "tests/daemon/fixture.h"

namespace prefixd::testing {

using ::testing::HasSubstr;
class ProgramTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const pid_t pid : running_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    std::filesystem::remove(arena_path_);
    std::filesystem::remove(arena_path_ + ".key");
    std::filesystem::remove_all(arena_path_ + ".locks");
  }
  // `log`: where the program writes, or -1 for a file that Log reads.
  pid_t Start(std::vector<std::string> args, int log = -1) {
    args.insert(args.begin(), PREFIXD_BINARY_DIR "/prefixd");
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    const pid_t pid = ::fork();
    if (pid == 0) {
      if (log < 0)
        log = ::open((dir_.path() + "/log").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
      ::dup2(log, STDERR_FILENO);
      ::dup2(log, STDOUT_FILENO);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    running_.push_back(pid);
    return pid;
  }
  int Wait(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    std::erase(running_, pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::vector<std::string> Args(const std::string& socket = "s",
                                const std::string& directory = "ssd") {
    return {"--socket",    dir_.path() + "/" + socket,
            "--directory", dir_.path() + "/" + directory,
            "--arena",     arena_path_,
            "--ram",       "64MiB",
            "--ssd",       "1GiB",
            "--ssd-floor", "0"};
  }
  static std::vector<std::string> Plus(std::vector<std::string> args, const std::string& name,
                                       const std::string& value) {
    for (size_t i = 0; i < args.size(); i += 2) {
      if (args[i] == name)
        args.erase(args.begin() + static_cast<long>(i), args.begin() + static_cast<long>(i) + 2);
    }
    args.push_back(name);
    args.push_back(value);
    return args;
  }
  std::string target() const { return "unix:" + dir_.path() + "/s"; }
  bool Serves() {
    return Worker::Channel(target())->WaitForConnected(std::chrono::system_clock::now() +
                                                       std::chrono::seconds(30));
  }
  std::string Log() {
    std::stringstream text;
    text << std::ifstream(dir_.path() + "/log").rdbuf();
    return text.str();
  }

  // Until the log has it, behind `after` if that is not empty; false after 30 s.
  bool Says(const std::string& text, const std::string& after = "") {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (;;) {
      const std::string log = Log();
      const size_t from = log.find(after);
      if (from != std::string::npos && log.find(text, from) != std::string::npos) return true;
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
  }

  TempDir dir_;
  const std::string arena_path_ =
      "/dev/shm/" + std::filesystem::path(dir_.path()).filename().string() + ".arena";
  std::vector<pid_t> running_;
};

}  // namespace prefixd::testing
