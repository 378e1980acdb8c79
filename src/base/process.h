// Who a process is, and whether it lives: what a lock's holder writes down, so that the next one
// can ask.
//
// Thread-safe. Reads /proc; what it does not tell is unknown.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace prefixd::base {

struct ProcessName {
  uint64_t pid = 0;            // 0 = nobody is named
  uint64_t start = 0;          // clock ticks after the boot: pids are used again
  uint64_t pid_namespace = 0;  // pids of another one say nothing here
  bool operator==(const ProcessName&) const = default;
};

// By its pid at this moment; zeros behind the pid where /proc does not tell.
ProcessName NameOf(uint64_t pid);
ProcessName ThisProcess();

// One line of text of kProcessLineBytes bytes, and back; nobody when it is no such line.
inline constexpr size_t kProcessLineBytes = 80;
std::string Encode(const ProcessName& process);
ProcessName DecodeProcess(std::string_view line);

enum class Life {
  kUnknown,  // nobody is named, it is of another namespace, or /proc does not tell
  kLives,
  kEnding,  // it was killed or is on its way out: the kernel may still hold what it had
  kGone,
};
// A process that was just killed may seem to live for an instant.
Life LifeOf(const ProcessName& process);
// Of whoever has this pid now, in this namespace; 0 = unknown.
Life LifeOf(uint64_t pid);

}  // namespace prefixd::base
