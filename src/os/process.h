// Facts about processes and threads.
//
// Thread-safe.
#pragma once
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <optional>

namespace prefixd::os {

struct ProcessFacts {
  uint64_t start =
      0;  // tells processes of one pid apart, within a boot; 0: the system tells nothing
  bool is_ending = false;  // dead, being killed, or exiting
};
ProcessFacts FactsOf(uint64_t pid);
// Returns a number for the namespace that this process's pids belong to; 0 if the system has none.
uint64_t PidNamespace();

// What this process has used; nullopt where the system does not tell.
struct OwnUse {
  double cpu_s = 0;
  std::optional<double> started_s;  // Unix time
  double address_space_bytes = 0;
  double resident_bytes = 0;
};
std::optional<OwnUse> UseOfThisProcess();
// Returns the bytes that this process had disks write.
std::optional<double> BytesToDisk();
// Returns the bytes of memory that no file is behind.
std::optional<uint64_t> AnonymousBytes();

// Gives the calling thread a name for lists of threads; at most 15 characters.
void NameThisThread(const char* name);
// Returns this process's variables, "NAME=value", behind the last of them null.
char** Variables();
// Starts this program anew. Returns only if it could not.
void StartAgain(char** argv);

// Waits for one of the signals, which every thread blocks. Returns 0 once `limit` has passed;
// without a limit, never. portable: up to 10 ms late.
int WaitForSignal(const sigset_t& signals, std::optional<std::chrono::milliseconds> limit);

// The heap of the C library. Large allocations are given back at once above `map_bytes`, the end of
// a heap above `trim_bytes`, and there are at most `heaps`. No effect where the library has no such
// settings.
struct HeapLimits {
  int map_bytes = 0, trim_bytes = 0, heaps = 0;
};
void LimitHeap(const HeapLimits& limits);
// Returns what the program has allocated, 0 if the library does not tell.
uint64_t AllocatedBytes();
// Gives back what is free inside the heaps.
void TrimHeap();

}  // namespace prefixd::os
