#include "os/machine.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace prefixd::os {
namespace {

// Files as a kernel shows them.
class MachineTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists("/proc/self")) GTEST_SKIP() << "calls tell here, not files";
    root_ = testing::TempDir() + "prefixd_os_test_XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
  }
  void TearDown() override {
    if (!root_.empty()) std::filesystem::remove_all(root_);
  }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST(BootTest, TheBootIsOneNumberAndNotZero) {
  std::array<std::byte, 16> first{}, second{};
  ASSERT_TRUE(BootId(first));
  ASSERT_TRUE(BootId(second));
  EXPECT_EQ(first, second);
  EXPECT_NE(first, (std::array<std::byte, 16>{}));
}

TEST(RandomTest, EveryByteIsDrawnAnew) {
  std::array<std::byte, 1000> first{}, second{};
  ASSERT_TRUE(RandomBytes(first));
  ASSERT_TRUE(RandomBytes(second));
  EXPECT_NE(first, second);
  EXPECT_TRUE(RandomBytes({}));
}

TEST(RandomTest, NoDescriptorIsNeeded) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  std::array<std::byte, 1000> bytes{};
  const bool drawn = RandomBytes(bytes);
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(drawn);
}

TEST_F(MachineTest, MemoryAndSwapAreInBytes) {
  Write("/proc/meminfo", "MemTotal: 99 kB\nMemAvailable:   17 kB\nSwapTotal: 4 kB\n");
  EXPECT_EQ(MemoryAvailable(root_), 17u << 10);
  EXPECT_EQ(SwapBytes(root_), 4u << 10);
  EXPECT_EQ(MemoryAvailable(root_ + "/nowhere"), std::nullopt);
  EXPECT_GT(MemoryAvailable("").value_or(0), 0u);
}

TEST_F(MachineTest, TheLeastLimitOfTheGroupsAboveAProcessHolds) {
  EXPECT_EQ(GroupMemoryLimit(root_, 0), kNoLimit);
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  EXPECT_EQ(GroupMemoryLimit(root_, 0), kNoLimit);
  Write("/sys/fs/cgroup/a/memory.max", "4096\n");
  EXPECT_EQ(GroupMemoryLimit(root_, 0), 4096u);
  Write("/proc/71/cgroup", "5:cpu:/x\n4:memory:/y\n");
  Write("/sys/fs/cgroup/memory/y/memory.limit_in_bytes", "8192\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(GroupMemoryLimit(root_, 71), 8192u);
  EXPECT_GT(GroupMemoryLeft(), 0u) << "of this process's own groups";
}

TEST_F(MachineTest, ACpuLimitOfTheGroupsAboveTheProcessHolds) {
  const unsigned cpus = UsableCpus(root_);
  EXPECT_GE(cpus, 1u);
  EXPECT_LE(cpus, std::thread::hardware_concurrency());
  EXPECT_LE(UsableCpus(""), cpus);
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(UsableCpus(root_), cpus);
  Write("/sys/fs/cgroup/a/cpu.max", "100000 100000\n");
  EXPECT_EQ(UsableCpus(root_), 1u);
  Write("/sys/fs/cgroup/a/cpu.max", "1000 100000\n");
  EXPECT_EQ(UsableCpus(root_), 1u) << "less than one is one";
  Write("/sys/fs/cgroup/a/cpu.max", "100001 100000\n");
  EXPECT_EQ(UsableCpus(root_), std::min(cpus, 2u)) << "rounded up";
  Write("/proc/self/cgroup", "4:cpu,cpuacct:/y\n5:cpuset:/z\n");
  Write("/sys/fs/cgroup/cpu/y/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/y/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(UsableCpus(root_), cpus);
  Write("/sys/fs/cgroup/cpu/y/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(UsableCpus(root_), 1u);
}

#if defined(__linux__)
TEST_F(MachineTest, CpusThatTheThreadMayNotRunOnDoNotCount) {
  unsigned cpus = 0;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    if (sched_setaffinity(0, sizeof(one), &one) == 0) cpus = UsableCpus(root_);
  }).join();
  EXPECT_EQ(cpus, 1u);
}
#endif

TEST_F(MachineTest, NumaNodesAreThoseThatHaveMemoryAndCpus) {
  const std::string folder = "/sys/devices/system/node/";
  EXPECT_TRUE(NumaNodes(root_).empty());
  Write(folder + "has_memory", "0\n");
  Write(folder + "has_cpu", "0\n");
  EXPECT_EQ(NumaNodes(root_), std::vector<unsigned>({0}));
  Write(folder + "has_memory", "0-2,5,7-8\n");
  Write(folder + "has_cpu", "0-8\n");
  EXPECT_EQ(NumaNodes(root_), std::vector<unsigned>({0, 1, 2, 5, 7, 8}));
  Write(folder + "has_cpu", "0-1\n");
  EXPECT_EQ(NumaNodes(root_), std::vector<unsigned>({0, 1})) << "a GPU's memory is not meant";
}

TEST_F(MachineTest, DescriptorLimitsAreReadPerProcess) {
  Write("/proc/self/limits", "Max open files            1024      4096      files\n");
  Write("/proc/71/limits", "Max open files            unlimited unlimited files\n");
  EXPECT_EQ(DescriptorLimit(root_, 0), 1024u);
  EXPECT_EQ(DescriptorLimit(root_, 71), kNoLimit);
  EXPECT_EQ(DescriptorLimit(root_, 72), std::nullopt);
}

TEST_F(MachineTest, AMountHasHugePagesIfItAsksAndTheKernelLets) {
  const std::string modes = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
  EXPECT_EQ(MountHasHugePages(root_, "/run/a/x"), std::nullopt);
  Write(modes, "always within_size advise [never] deny force\n");
  Write("/proc/self/mountinfo",
        "1 1 0:1 / / rw - ext4 /dev/x rw\n2 1 0:2 / /run/a rw - tmpfs t rw,huge=within_size\n");
  EXPECT_EQ(MountHasHugePages(root_, "/run/a/x"), true);
  EXPECT_EQ(MountHasHugePages(root_, "/run/b"), false);
  EXPECT_EQ(MountHasHugePages(root_, "/run/ab"), false) << "not below /run/a";
  Write(modes, "always within_size advise never deny [force]\n");
  EXPECT_EQ(MountHasHugePages(root_, "/run/b"), true);
  Write(modes, "always within_size advise never [deny] force\n");
  EXPECT_EQ(MountHasHugePages(root_, "/run/a/x"), false);
}

TEST_F(MachineTest, TheReleaseAndFlagsAreTheKernels) {
  EXPECT_EQ(KernelRelease(root_), "");
  EXPECT_EQ(CpuFlags(root_), "");
  Write("/proc/sys/kernel/osrelease", "5.14.0-1\n");
  Write("/proc/cpuinfo", "model: x\nflags\t: fpu avx2\n");
  EXPECT_EQ(KernelRelease(root_), "5.14.0-1");
  EXPECT_NE(CpuFlags(root_).find(" avx2 "), std::string::npos);
  EXPECT_TRUE(MapsAhead("5.14.0-1"));
  EXPECT_TRUE(MapsAhead("6.1.0"));
  EXPECT_FALSE(MapsAhead("5.13.9"));
  EXPECT_FALSE(MapsAhead(""));
}

TEST(TilesTest, AskingTwiceGivesOneAnswer) {
  EXPECT_EQ(AskForTileRegisters(), AskForTileRegisters());
}

}  // namespace
}  // namespace prefixd::os
