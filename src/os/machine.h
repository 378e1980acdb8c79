// Facts about the machine. `root` is put before every path that is read: "" but in tests.
//
// Thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace prefixd::os {

inline constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

// Writes 16 bytes that are others after every boot. Returns false if the system does not tell.
bool BootId(std::span<std::byte, 16> id);

// Fills `bytes` from the system's source for keys. Returns false, with errno, if it has none.
bool RandomBytes(std::span<std::byte> bytes);

// Memory in bytes: what programs can have without others being swapped out, and all swap space.
std::optional<uint64_t> MemoryAvailable(const std::string& root);
std::optional<uint64_t> SwapBytes(const std::string& root);
// What the groups that limit this process's memory still let it have; kNoLimit without a limit.
uint64_t GroupMemoryLeft();
// The least limit of the groups of a process (0: this one); kNoLimit without one.
uint64_t GroupMemoryLimit(const std::string& root, uint64_t pid);

// How many threads can run at a time: the CPUs that the calling thread may run on, or fewer,
// rounded up, if one of the process's groups may take less time than they have (a container's CPU
// limit). At least 1.
unsigned UsableCpus(const std::string& root);

// The numbers of the NUMA nodes that have memory and CPUs, ascending; empty if the system does not
// tell. Nodes of memory alone are far from every CPU: a GPU's, or behind a CXL link.
std::vector<unsigned> NumaNodes(const std::string& root);

// The most descriptors that a process (0: this one) may have; kNoLimit without a limit.
std::optional<uint64_t> DescriptorLimit(const std::string& root, uint64_t pid);

// Whether files of the mount that holds `path` can have huge pages. nullopt if the system does not
// tell.
std::optional<bool> MountHasHugePages(const std::string& root, const std::string& path);

std::string KernelRelease(const std::string& root);  // "6.1.0-18-amd64"; empty if not told
// Whether AllocateSmallPages and Populate can map ahead with a kernel of that release.
bool MapsAhead(const std::string& release);
// The CPU's flags as the kernel lists them, a space before and behind each; empty if not told.
std::string CpuFlags(const std::string& root);
// Whether the CPU multiplies groups of four bytes and adds their products in one instruction, where
// not every CPU of its kind does: arm64's sdot and udot. False on other machines.
bool HasDotProduct();
// Asks the kernel for the registers of matrix tiles, on CPUs that have them. Returns whether
// threads may use them.
bool AskForTileRegisters();

}  // namespace prefixd::os
