// A daemon with an SSD tier that restarts as after a reboot, and a client of it. The parameter says
// whether pages are read in a shared arena.
#pragma once
#include <optional>

#include "tests/client/daemon.h"

namespace prefixd {

class RestartTest : public testing::TestWithParam<bool> {
 protected:
  void StartDaemon() {
    daemon_.emplace(directory_.socket(), DaemonOptions{.arena = GetParam() ? arena_.path() : "",
                                                       .directory = directory_.path() + "/ssd"});
    client_.emplace(ClientOptions{.address = directory_.address()});
  }
  // Spaces and sequences of the client are gone before.
  void StopDaemon() {
    client_.reset();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    ASSERT_EQ(daemon_->cache().Flush(end).dirty_bytes, 0u);
    daemon_.reset();
    std::filesystem::remove(arena_.path());
  }

  TempDirectory directory_;
  ArenaPath arena_;
  std::optional<Daemon> daemon_;
  std::optional<Client> client_;
};

}  // namespace prefixd
