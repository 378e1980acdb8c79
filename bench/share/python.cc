// Acquire by the Python package beside the C++ client, in turns, on one daemon (G2).
#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

#include "bench/common/child_process.h"
#include "bench/common/partner.h"
#include "bench/common/patience.h"
#include "bench/common/raw_transfer.h"
#include "bench/common/timing.h"
#include "bench/share/share.h"

namespace prefixd::bench {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kTokens = 2'048;
const Geometry kGeometry{.model = "4 KiB a token", .layers = 2, .kv_heads = 8, .dim = 128};

// acquire_python.py. nullptr where there is no Python with NumPy, which is a note, no
// failure.
std::unique_ptr<Partner> StartPython(Bench& bench, const std::string& address,
                                     const std::string& space,
                                     const std::vector<uint32_t>& tokens) {
  const std::filesystem::path source = PREFIXD_SOURCE_DIR;
  if (!std::filesystem::exists(PREFIXD_PYTHON)) {
    bench.Note("python: skipped, no interpreter was found by cmake");
    return nullptr;
  }
  auto python = Partner::StartProgram(
      {PREFIXD_PYTHON, "-B", source / "bench/share/acquire_python.py", source / "client/python",
       std::filesystem::path(ThisProgram()).replace_filename("libprefixd.so"), address});
  if (!bench.Check(python.ok(), python.status().ToString())) return nullptr;
  const nlohmann::json asked = {{"space", space},
                                {"model", kGeometry.model},
                                {"layers", kGeometry.layers},
                                {"kv_heads", kGeometry.kv_heads},
                                {"dim", kGeometry.dim},
                                {"tokens", tokens}};
  const auto answer = (*python)->Ask(asked.dump(), kPatience);
  if (!answer.ok()) {
    bench.Note("python: skipped, " PREFIXD_PYTHON " did not start; it wants python3-numpy");
    return nullptr;
  }
  if (!bench.Check(*answer == "ready", "python: " + answer->dump())) return nullptr;
  return *std::move(python);
}

double AcquireFromPython(Bench& bench, Partner* python, const std::string& form) {
  const auto answer = python->Ask(form, kPatience);
  if (!bench.Check(answer.ok(), answer.status().ToString())) return -1;
  return bench.Check(answer->is_number(), "python: " + answer->dump()) ? answer->get<double>() : -1;
}

double AcquireFromCpp(Bench& bench, Space* space, const std::vector<uint32_t>& tokens) {
  std::this_thread::sleep_for(milliseconds(1));  // as the script does
  const double start = NowMicros();
  Lease lease = space->Acquire(tokens, {.deadline = kPatience});
  const uint32_t found = lease.WaitAll();
  const double took_us = NowMicros() - start;
  return bench.Check(found == kTokens,
                     absl::StrCat("c++: ", found, " tokens: ", lease.match().why_shorter))
             ? took_us
             : -1;
}

bool Store(Bench& bench, const std::string& address) {
  const PageSource source(kGeometry);
  const auto session = RawSession::Open({.address = address, .staging_bytes = 16 * kMiB});
  if (!bench.Check(session.ok(), session.status().ToString())) return false;
  const auto space = (*session)->OpenSpace(source.identity());
  if (!bench.Check(space.ok(), space.status().ToString())) return false;
  const absl::Status stored = StoreStaged(**session, source, MakeSequence(*space, 1, kTokens));
  return bench.Check(stored.ok(), stored.ToString());
}

}  // namespace

void SharePython(Bench& bench) {
  const uint64_t rounds = bench.Parameter("python_rounds", 3, 300, 2'000);
  const auto daemon = StartSharedDaemon(bench, "python", 64 * kMiB);
  if (daemon == nullptr) return;
  const std::string address = daemon->process->address();
  Client client({.address = address, .name = "share-python-reference"});
  bench.Check(client.WaitAttached(kPatience), "python: not attached");
  Result<Space> space = client.OpenSpace(SpecOf(kGeometry));
  if (!bench.Check(space.ok(), space.status.message)) return;
  const std::vector<uint32_t> tokens = TokensOf({.seed = 1, .tokens = kTokens});
  if (!Store(bench, address)) return;
  const auto python = StartPython(bench, address, space.value().id(), tokens);
  if (python == nullptr) return;
  // Each of Python's after one of C++: whoever has just run finds its caches warm.
  enum Call : size_t { kCpp, kArray, kCppAgain, kList };
  const Turns turns =
      TakeTurns(rounds, {[&] { return AcquireFromCpp(bench, &space.value(), tokens); },
                         [&] { return AcquireFromPython(bench, python.get(), "array"); },
                         [&] { return AcquireFromCpp(bench, &space.value(), tokens); },
                         [&] { return AcquireFromPython(bench, python.get(), "list"); }});
  if (!bench.Check(turns.good, "an acquire failed")) return;
  JudgeLatency(bench, turns, {"acquire 2048 from Python, an array", kArray, kCpp, "C++", 1.3});
  JudgeLatency(bench, turns, {"acquire 2048 from Python, a list", kList, kCppAgain, "C++", 1.3});
  const absl::Status stopped = daemon->process->Stop();
  bench.Check(stopped.ok(), stopped.ToString());
}

}  // namespace prefixd::bench
