#include "bench/remote/veth.h"

#include <sys/wait.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/status.h"
#include "bench/common/child_process.h"

namespace prefixd::bench {
namespace {

absl::Status Ip(const std::string& words, const std::string& log) {
  Command command{.arguments = {"/usr/bin/env", "ip"}, .out = log, .errors_too = true};
  for (const absl::string_view word : absl::StrSplit(words, ' ')) {
    command.arguments.emplace_back(word);
  }
  PREFIXD_ASSIGN_OR_RETURN(const pid_t pid, StartProcess(command));
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("ip ", words, ": ", ReadText(log)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Veth>> Veth::Make(const std::string& log) {
  const pid_t pid = ::getpid();
  const std::string name = absl::StrCat("pxb", pid), near = absl::StrCat(name, "a"),
                    far = absl::StrCat(name, "b");
  // A /30 of 10.213.0.0/16, by the process: two benches may run at once.
  const int block = static_cast<int>(pid % 16'384) * 4;
  const std::string net = absl::StrCat("10.213.", block / 256, ".");
  const std::string ours = absl::StrCat(net, block % 256 + 1);
  const std::string theirs = absl::StrCat(net, block % 256 + 2);
  PREFIXD_RETURN_IF_ERROR(Ip("netns add " + name, log));
  std::unique_ptr<Veth> made(new Veth({.address = theirs, .network_namespace = name}));
  for (const std::string& words :
       {absl::StrCat("link add ", near, " type veth peer name ", far, " netns ", name),
        absl::StrCat("addr add ", ours, "/30 dev ", near), absl::StrCat("link set ", near, " up"),
        absl::StrCat("-n ", name, " addr add ", theirs, "/30 dev ", far),
        absl::StrCat("-n ", name, " link set ", far, " up"),
        absl::StrCat("-n ", name, " link set lo up")}) {
    PREFIXD_RETURN_IF_ERROR(Ip(words, log));
  }
  return made;
}

Veth::~Veth() { (void)Ip("netns del " + place_.network_namespace, "/dev/null"); }

}  // namespace prefixd::bench
