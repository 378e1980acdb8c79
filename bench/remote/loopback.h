// Plain TCP to a process of this machine: what a store's client is held against. Calls nothing of
// the project.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace prefixd::bench {

// Where servers listen.
struct Place {
  std::string address = "127.0.0.1";
  std::string network_namespace;  // a name of `ip netns`; empty: this process' own
};

// A port of 127.0.0.1 that nobody listens on now; 0 if the kernel gives none.
uint16_t FreePort();

// A connection that blocks. One thread.
class LoopbackSocket {
 public:
  explicit LoopbackSocket(uint16_t port, const std::string& address = Place().address);
  ~LoopbackSocket();
  LoopbackSocket(const LoopbackSocket&) = delete;
  LoopbackSocket& operator=(const LoopbackSocket&) = delete;

  // False: the other side is gone, or says nothing for ten seconds.
  bool Write(std::span<const std::byte> bytes) const;
  bool Read(std::span<std::byte> bytes) const;  // all of them
  // Sends a command of Redis and reads an answer of one line.
  bool Ask(const std::string& command, std::string* line) const;
  bool Answers() const;  // to PING

 private:
  int socket_ = -1;
};

// A process that sends or receives as many bytes as it is told, 1 MiB a call; each connection has a
// process of its own, and they all walk over the same memory.
class LoopbackPeer {
 public:
  // Forks: before this process has threads of its own. nullptr when the kernel refuses.
  static std::unique_ptr<LoopbackPeer> Start(uint64_t memory_bytes, const Place& place = {});
  ~LoopbackPeer();
  LoopbackPeer(const LoopbackPeer&) = delete;
  LoopbackPeer& operator=(const LoopbackPeer&) = delete;

  std::unique_ptr<LoopbackSocket> Connect() const {
    return std::make_unique<LoopbackSocket>(port_, place_.address);
  }
  const Place& place() const { return place_; }
  // The peer sends, or receives and confirms, all of `memory` over a connection to its port.
  static bool ReceiveAll(const LoopbackSocket& socket, std::span<std::byte> memory);
  static bool SendAll(const LoopbackSocket& socket, std::span<const std::byte> memory);

 private:
  LoopbackPeer(pid_t pid, uint16_t port, Place place)
      : pid_(pid), port_(port), place_(std::move(place)) {}
  const pid_t pid_;
  const uint16_t port_;
  const Place place_;
};

}  // namespace prefixd::bench
