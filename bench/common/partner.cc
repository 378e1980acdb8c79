#include "bench/common/partner.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "bench/common/child_process.h"
#include "bench/common/child_roles.h"

namespace prefixd::bench {

using std::chrono::milliseconds;

absl::StatusOr<std::unique_ptr<Partner>> Partner::Start(const std::string& role,
                                                        const nlohmann::json& plan) {
  return StartProgram({std::filesystem::path(ThisProgram()).replace_filename("prefixd-bench"),
                       "--child", role, "--plan", plan.dump()});
}

absl::StatusOr<std::unique_ptr<Partner>> Partner::StartProgram(std::vector<std::string> arguments) {
  ::signal(SIGPIPE, SIG_IGN);  // a partner that is gone is an answer
  int to[2], from[2];
  if (::pipe2(to, O_CLOEXEC) != 0) return absl::InternalError("partner: no pipe");
  if (::pipe2(from, O_CLOEXEC) != 0) {
    ::close(to[0]);
    ::close(to[1]);
    return absl::InternalError("partner: no pipe");
  }
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, pointers[0], &actions, nullptr, pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(to[0]);
  ::close(from[1]);
  std::unique_ptr<Partner> partner(new Partner(error == 0 ? pid : -1, to[1], from[0]));
  if (error == 0) return partner;
  return absl::InternalError(absl::StrCat("partner: ", arguments[0], ": ", std::strerror(error)));
}

Partner::~Partner() {
  Kill();
  ::close(to_);
  ::close(from_);
}

bool Partner::Running() {
  if (pid_ < 0) return false;
  if (::waitpid(pid_, nullptr, WNOHANG) == 0) return true;
  pid_ = -1;
  return false;
}

void Partner::Kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
}

bool Partner::Say(const std::string& line) {
  const std::string text = line + "\n";
  return ::write(to_, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

absl::StatusOr<nlohmann::json> Partner::Hear(milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  size_t end;
  while ((end = heard_.find('\n')) == std::string::npos) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd waiting{.fd = from_, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) == 0) {
      return absl::DeadlineExceededError("partner: no answer in time");
    }
    char text[4096];
    const ssize_t read = ::read(from_, text, sizeof(text));
    if (read <= 0) return absl::InternalError("partner: it ended");
    heard_.append(text, static_cast<size_t>(read));
  }
  nlohmann::json answer = nlohmann::json::parse(heard_.substr(0, end), nullptr, false);
  heard_.erase(0, end + 1);
  if (answer.is_discarded()) return absl::InternalError("partner: it said no JSON");
  return answer;
}

absl::StatusOr<nlohmann::json> Partner::Ask(const std::string& line, milliseconds patience) {
  if (!Say(line)) return absl::InternalError("partner: it ended");
  return Hear(patience);
}

bool HearParent(std::string* line) {
  line->clear();
  char one = 0;
  while (::read(STDIN_FILENO, &one, 1) == 1) {
    if (one == '\n') return true;
    line->push_back(one);
  }
  return false;
}

bool ParentWaits() {
  pollfd waiting{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, 0) > 0;
}

void TellParent(const nlohmann::json& answer) {
  std::printf("%s\n", answer.dump().c_str());
  std::fflush(stdout);
}

nlohmann::json GoodAnswer(Bench& bench, const absl::StatusOr<nlohmann::json>& answer) {
  if (!bench.Check(answer.ok(), answer.status().ToString())) return nullptr;
  const std::string error = answer->at("error");
  return bench.Check(error.empty(), error) ? *answer : nlohmann::json();
}

int RunChild(const std::string& role, const std::string& plan) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const nlohmann::json json = nlohmann::json::parse(plan, nullptr, false);
  if (!json.is_object()) return 2;
  for (const ChildRole& known : kChildRoles) {
    if (role == known.name) return known.run(json);
  }
  std::fprintf(stderr, "prefixd-bench: unknown role %s\n", role.c_str());
  return 2;
}

}  // namespace prefixd::bench
