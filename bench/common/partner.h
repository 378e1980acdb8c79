// Worker processes of a workload: prefixd-bench started again in a role, talked to in lines over
// its standard input and output. Works in a process that uses gRPC, which fork() does not.
//
// One thread. The destructor kills.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

#include "bench/common/bench.h"

namespace prefixd::bench {

class Partner {
 public:
  // The program prefixd-bench beside this one. `plan` is the role's own.
  static absl::StatusOr<std::unique_ptr<Partner>> Start(const std::string& role,
                                                        const nlohmann::json& plan);
  // Any program that speaks JSON in lines; its path first.
  static absl::StatusOr<std::unique_ptr<Partner>> StartProgram(std::vector<std::string> arguments);
  ~Partner();
  Partner(const Partner&) = delete;
  Partner& operator=(const Partner&) = delete;

  bool Say(const std::string& line);
  // DeadlineExceeded, or Internal when the partner ended or said no JSON.
  absl::StatusOr<nlohmann::json> Hear(std::chrono::milliseconds patience);
  // Says `line` and hears the answer.
  absl::StatusOr<nlohmann::json> Ask(const std::string& line, std::chrono::milliseconds patience);
  pid_t pid() const { return pid_; }
  bool Running();
  void Kill();  // SIGKILL, and waits for the end

 private:
  Partner(pid_t pid, int to, int from) : pid_(pid), to_(to), from_(from) {}
  pid_t pid_;  // -1 once it has ended
  const int to_, from_;
  std::string heard_;
};

// The other side. False at the end of input: the parent is gone or wants no more.
bool HearParent(std::string* line);
// Whether the parent has said something or is gone: HearParent would not wait.
bool ParentWaits();
void TellParent(const nlohmann::json& answer);

// Returns what a partner answered; null, and a failed check, if it did not answer or its "error" is
// not empty.
nlohmann::json GoodAnswer(Bench& bench, const absl::StatusOr<nlohmann::json>& answer);

// What main() does with --child ROLE PLAN. Ends with the parent.
int RunChild(const std::string& role, const std::string& plan);

}  // namespace prefixd::bench
