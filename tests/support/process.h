// A child process whose output the test reads: start, wait for a line, signal, wait for the end.
// For tests.
#pragma once
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

extern char** environ;

namespace prefixd::testing {

class Process {
 public:
  // argv[0] is the program's path. Output and errors come through one pipe each.
  explicit Process(std::vector<std::string> argv) : argv_(std::move(argv)) {
    int out[2], err[2];
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
    std::vector<char*> pointers;
    for (std::string& arg : argv_) pointers.push_back(arg.data());
    pointers.push_back(nullptr);
    if (posix_spawn(&pid_, argv_[0].c_str(), &actions, nullptr, pointers.data(), environ) != 0)
      pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(err[1]);
    out_fd_ = out[0];
    err_fd_ = err[0];
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      Wait();
    }
    if (out_fd_ >= 0) close(out_fd_);
    if (err_fd_ >= 0) close(err_fd_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }
  void Signal(int signal) const { kill(pid_, signal); }

  // Reads until standard error (or output) holds `text`. False when the process ended or ten
  // minutes passed first, which an emulator needs.
  bool WaitForError(const std::string& text) {
    return ReadUntil([&] { return err_.find(text) != std::string::npos; });
  }
  bool WaitForOutput(const std::string& text) {
    return ReadUntil([&] { return out_.find(text) != std::string::npos; });
  }
  // Reads all output, then the exit code; 128 + signal when it was killed; -1 when it never
  // started.
  int Wait() {
    if (pid_ <= 0) return exit_code_;
    ReadUntil([] { return false; });
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return exit_code_;
  }

 private:
  template <typename Done>
  bool ReadUntil(Done done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(10);
    while (!done()) {
      pollfd fds[2] = {{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}};
      if (out_fd_ < 0 && err_fd_ < 0) return false;
      if (std::chrono::steady_clock::now() >= deadline || poll(fds, 2, 1000) < 0) return false;
      Drain(fds[0], &out_fd_, &out_);
      Drain(fds[1], &err_fd_, &err_);
    }
    return true;
  }
  static void Drain(const pollfd& ready, int* fd, std::string* text) {
    if (*fd < 0 || ready.revents == 0) return;
    char buffer[4096];
    const ssize_t count = read(*fd, buffer, sizeof(buffer));
    if (count > 0) {
      text->append(buffer, static_cast<size_t>(count));
    } else if (count == 0) {
      close(*fd);
      *fd = -1;
    }
  }

  std::vector<std::string> argv_;
  pid_t pid_ = -1;
  int out_fd_ = -1, err_fd_ = -1;
  int exit_code_ = -1;
  std::string out_, err_;
};

}  // namespace prefixd::testing
