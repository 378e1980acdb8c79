#include "base/lock_order.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

namespace prefixd::base {
namespace {

constexpr uint32_t kMaxClasses = 512;
constexpr uint32_t kMaxHeld = 32;

struct Graph {
  std::mutex mutex;  // guards names, and the writing of orders
  std::vector<std::string> names;
  // orders[a][b]: b was taken while a was held.
  std::array<std::array<std::atomic<bool>, kMaxClasses>, kMaxClasses> orders{};
};

Graph& TheGraph() {
  static Graph* const graph = new Graph;  // mutexes of static objects outlive other statics
  return *graph;
}

struct Held {
  std::array<uint32_t, kMaxHeld> classes{};
  uint32_t count = 0;
};
thread_local Held held;

[[noreturn]] void Abort(const std::string& why) {
  std::fprintf(stderr, "lock order: %s\n", why.c_str());
  std::abort();
}

uint32_t Register(const char* name, const char* file, uint32_t line) {
  const std::string wanted =
      name != nullptr ? name : std::string(file) + ":" + std::to_string(line);
  Graph& graph = TheGraph();
  const std::lock_guard<std::mutex> lock(graph.mutex);
  for (uint32_t id = 0; id < graph.names.size(); ++id) {
    if (graph.names[id] == wanted) return id;
  }
  if (graph.names.size() == kMaxClasses) Abort("too many classes of mutexes");
  graph.names.push_back(wanted);
  return static_cast<uint32_t>(graph.names.size() - 1);
}

// Finds the classes from `from` to `to`, each taken while the one before was held. False: none.
bool FindPath(const Graph& graph, uint32_t from, uint32_t to, std::vector<bool>& seen,
              std::vector<uint32_t>& path) {
  path.push_back(from);
  if (from == to) return true;
  seen[from] = true;
  for (uint32_t next = 0; next < graph.names.size(); ++next) {
    if (graph.orders[from][next] && !seen[next] && FindPath(graph, next, to, seen, path))
      return true;
  }
  path.pop_back();
  return false;
}

void NoteOrder(uint32_t outer, uint32_t inner) {
  Graph& graph = TheGraph();
  if (graph.orders[outer][inner].load(std::memory_order_relaxed)) return;
  const std::lock_guard<std::mutex> lock(graph.mutex);
  std::vector<bool> seen(graph.names.size());
  std::vector<uint32_t> path;
  if (FindPath(graph, inner, outer, seen, path)) {
    std::string chain;
    for (const uint32_t id : path) chain += (chain.empty() ? "" : ", then ") + graph.names[id];
    Abort(outer == inner ? "two mutexes of " + chain + " are held by one thread"
                         : graph.names[inner] + " is taken while " + graph.names[outer] +
                               " is held; taken before in this order: " + chain);
  }
  graph.orders[outer][inner].store(true, std::memory_order_relaxed);
}

}  // namespace

CheckedLockClass::CheckedLockClass(const char* name, const char* file, uint32_t line)
    : id_(Register(name, file, line)) {}

void CheckedLockClass::Locking() const {
  for (uint32_t i = 0; i < held.count; ++i) NoteOrder(held.classes[i], id_);
  if (held.count == kMaxHeld) Abort("too many mutexes are held by one thread");
  held.classes[held.count++] = id_;
}

void CheckedLockClass::Unlocked() const {
  for (uint32_t i = held.count; i-- > 0;) {
    if (held.classes[i] != id_) continue;
    for (uint32_t later = i + 1; later < held.count; ++later)
      held.classes[later - 1] = held.classes[later];
    --held.count;
    return;
  }
  Abort("a mutex is unlocked by a thread that does not hold it");
}

}  // namespace prefixd::base
