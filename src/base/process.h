// The name of a process, and whether it lives. A lock's holder writes its name down, so that the
// next process can check.
//
// Thread-safe. Reads /proc; what /proc does not tell is unknown.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace prefixd::base {

struct ProcessName {
  uint64_t pid = 0;            // 0 = nobody is named
  uint64_t start = 0;          // clock ticks after boot, since pids are reused
  uint64_t pid_namespace = 0;  // pids of another namespace mean nothing here
  bool operator==(const ProcessName&) const = default;
};

// Names the process that has this pid at this moment. Fields that /proc does not tell are 0.
ProcessName NameOf(uint64_t pid);
ProcessName ThisProcess();

// Encodes a name as a line of kProcessLineBytes bytes. DecodeProcess returns pid 0 for other text.
inline constexpr size_t kProcessLineBytes = 80;
std::string Encode(const ProcessName& process);
ProcessName DecodeProcess(std::string_view line);

enum class Life {
  kUnknown,  // nobody is named, it is in another namespace, or /proc does not tell
  kLives,
  kEnding,  // killed or exiting; the kernel may not have released yet what it held
  kGone,
};
// A process that was just killed may seem to live for an instant.
Life LifeOf(const ProcessName& process);
// Describes whichever process has this pid now, in this namespace; kUnknown for 0.
Life LifeOf(uint64_t pid);

}  // namespace prefixd::base
