// The threads at both ends of a long stream meet on one CPU, and afterwards run where they might.
#include "wire/stream_cpu.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <latch>
#include <optional>
#include <thread>

#include "tests/support/cpus.h"
#include "wire/long_stream.h"

namespace prefixd::wire {
namespace {

constexpr int kNoCpu = CPU_SETSIZE - 1;

// The first or the last CPU that this process may use.
int FirstCpu() {
  const cpu_set_t home = CpusOf();
  int cpu = 0;
  while (!CPU_ISSET(static_cast<size_t>(cpu), &home)) ++cpu;
  return cpu;
}
int LastCpu() {
  const cpu_set_t home = CpusOf();
  int cpu = CPU_SETSIZE - 1;
  while (!CPU_ISSET(static_cast<size_t>(cpu), &home)) --cpu;
  return cpu;
}
// Where a thread of this process is when it came to `cpu`.
cpu_set_t Beside(int cpu) {
  const cpu_set_t home = CpusOf(), beside = CpusBeside(cpu);
  cpu_set_t both;
  CPU_AND(&both, &home, &beside);
  return both;
}

// Carries some bytes of a stream, and stays until this goes.
class CarryingThread {
 public:
  CarryingThread(Carriers::Stream* stream, uint64_t bytes)
      : thread_([this, stream, bytes] {
          id_ = ::gettid();
          stream->Carried(bytes);
          carried_.count_down();
          end_.wait();
        }) {
    carried_.wait();
  }
  ~CarryingThread() {
    end_.count_down();
    thread_.join();
  }
  CarryingThread(const CarryingThread&) = delete;
  CarryingThread& operator=(const CarryingThread&) = delete;
  cpu_set_t cpus() const { return CpusOf(id_); }

 private:
  pid_t id_ = 0;
  std::latch carried_{1}, end_{1};
  std::thread thread_;
};

class StreamCpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (here_ == home_) GTEST_SKIP() << "all CPUs of this process share one cache";
  }
  const cpu_set_t home_ = CpusOf();
  const int cpu_ = LastCpu();
  const cpu_set_t here_ = Beside(cpu_);
  Carriers carriers_;
};

TEST(CpusBesideTest, ACpuIsBesideItselfAlsoWhereTheKernelKnowsNothingOfIt) {
  for (const int cpu : {FirstCpu(), LastCpu(), kNoCpu}) {
    const cpu_set_t beside = CpusBeside(cpu);
    EXPECT_TRUE(CPU_ISSET(static_cast<size_t>(cpu), &beside)) << cpu;
  }
  const cpu_set_t none = CpusBeside(kNoCpu);
  EXPECT_EQ(CPU_COUNT(&none), 1);
}

TEST_F(StreamCpuTest, AThreadStaysBesideACpuUntilItIsLetGo) {
  {
    const StayBeside stay(cpu_);
    EXPECT_TRUE(CpusOf() == here_);
  }
  EXPECT_TRUE(CpusOf() == home_);
}

TEST_F(StreamCpuTest, WhereAThreadMayNotRunItDoesNotGo) {
  const int elsewhere = FirstCpu();
  ASSERT_EQ(::sched_setaffinity(0, sizeof(here_), &here_), 0);  // as an administrator would
  for (const int cpu : {elsewhere, kNoCpu}) {
    const StayBeside stay(cpu);
    EXPECT_TRUE(CpusOf() == here_) << cpu;
    Carriers::Stream stream(&carriers_, cpu);
    stream.Carried(kLongStreamBytes);
    EXPECT_TRUE(CpusOf() == here_) << cpu;
  }
  EXPECT_TRUE(CpusOf() == here_);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(home_), &home_), 0);
}

TEST_F(StreamCpuTest, WhoMovesTheBytesOfALongStreamStays) {
  for (const auto move : {&LongStream::Sent, &LongStream::Received}) {
    LongStream stream("unix:/nowhere", cpu_);
    (stream.*move)(kLongStreamBytes - 1);
    EXPECT_TRUE(CpusOf() == home_);
    (stream.*move)(1);
    EXPECT_TRUE(CpusOf() == here_);
  }
  EXPECT_TRUE(CpusOf() == home_);
  LongStream stream("unix:/nowhere", std::nullopt);
  stream.Sent(kLongStreamBytes);
  EXPECT_TRUE(CpusOf() == home_) << "nobody named a CPU";
}

TEST_F(StreamCpuTest, CarriersComeToALongStreamOnly) {
  Carriers::Stream stream(&carriers_, cpu_);
  const CarryingThread early(&stream, kLongStreamBytes - 1);
  EXPECT_TRUE(early.cpus() == home_);
  const CarryingThread late(&stream, 1);
  EXPECT_TRUE(late.cpus() == here_);
  EXPECT_TRUE(early.cpus() == home_) << "it carried nothing since";
  Carriers::Stream unnamed(&carriers_, std::nullopt);
  const CarryingThread other(&unnamed, kLongStreamBytes);
  EXPECT_TRUE(other.cpus() == home_) << "its peer named no CPU";
}

TEST_F(StreamCpuTest, CarriersGoBackWithTheLastLongStream) {
  std::optional<Carriers::Stream> first(std::in_place, &carriers_, FirstCpu());
  std::optional<Carriers::Stream> last(std::in_place, &carriers_, cpu_);
  Carriers::Stream unused(&carriers_, FirstCpu());
  const CarryingThread one(&*first, kLongStreamBytes);
  const CarryingThread other(&*last, kLongStreamBytes);
  EXPECT_TRUE(one.cpus() == Beside(FirstCpu()));
  EXPECT_TRUE(other.cpus() == here_);
  first.reset();
  EXPECT_TRUE(other.cpus() == here_) << "its stream goes on";
  last.reset();
  EXPECT_TRUE(one.cpus() == home_);
  EXPECT_TRUE(other.cpus() == home_);
}

TEST_F(StreamCpuTest, AThreadThatCarriedTwoStreamsGoesBackToWhereItBegan) {
  {
    Carriers::Stream first(&carriers_, FirstCpu());
    first.Carried(kLongStreamBytes);
    Carriers::Stream second(&carriers_, cpu_);
    second.Carried(kLongStreamBytes);
    EXPECT_TRUE(CpusOf() == here_);
    first.Carried(1);
    EXPECT_TRUE(CpusOf() == Beside(FirstCpu()));
  }
  EXPECT_TRUE(CpusOf() == home_);
}

TEST(NamedCpuTest, OnlyANumberOfACpuFromThisHostCounts) {
  if (CallbackThreads() != 2) {
    EXPECT_EQ(NamedCpu("unix:", "0"), std::nullopt) << "not on a host of this size";
    GTEST_SKIP() << "this host has many cores";
  }
  EXPECT_EQ(NamedCpu("unix:", "0"), 0);
  EXPECT_EQ(NamedCpu("unix:/run/x.sock", "12"), 12);
  for (const char* text : {"", "-1", "+1", " 1", "1 ", "0x1", "one", "1024", "99999999999999"}) {
    EXPECT_EQ(NamedCpu("unix:", text), std::nullopt) << text;
  }
  EXPECT_EQ(NamedCpu("ipv4:127.0.0.1:7777", "0"), std::nullopt);
}

TEST(NamedCpuTest, ACallerNamesItsOwnWhereTheDaemonIsOnItsHost) {
  for (const char* address : {"127.0.0.1:7777", "dns:///host:1", ""}) {
    EXPECT_EQ(CpuToName(address), std::nullopt) << address;
  }
  if (CallbackThreads() != 2) GTEST_SKIP() << "this host has many cores";
  const StayBeside stay(LastCpu());
  const std::optional<int> named = CpuToName("unix:/run/x.sock");
  ASSERT_TRUE(named.has_value());
  const cpu_set_t here = CpusOf();
  EXPECT_TRUE(CPU_ISSET(static_cast<size_t>(*named), &here));
}

}  // namespace
}  // namespace prefixd::wire
