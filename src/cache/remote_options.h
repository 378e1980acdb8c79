// What the cache is told of the store that hosts share.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "remote/bundle.h"
#include "remote/names.h"
#include "remote/remote_store.h"

namespace prefixd::cache {

struct RemoteOptions {
  std::shared_ptr<remote::RemoteStore> store = nullptr;  // null: there is none
  std::string host{};  // this one's name, for people who ask which spaces other hosts have
  remote::TenantKeys keys{};
  remote::Seal seal = remote::Seal::kAes256Gcm;
  // What is written over a long time; beyond it only what was offered twice or begins near the
  // start of a sequence. 0: no limit.
  uint64_t write_bytes_per_s = 0;
  std::chrono::seconds write_window{600};
  double write_share = 0;          // of the bytes that are asked for, found or stored; 0: no limit
  uint32_t shallow_tokens = 3072;  // what begins before counts as likely to be used again
  // How long a request waits for names at most; a tenth of what it may save, if that is less.
  std::chrono::milliseconds find_patience{19};  // with what is around it 20 ms
  // How long a block's bytes may take, and all that one request brings.
  std::chrono::milliseconds load_patience{2000}, request_patience{10'000};
  std::chrono::milliseconds store_patience{5000};
  // How long a block on its way waits for room in RAM.
  std::chrono::milliseconds room_patience{100};
};

}  // namespace prefixd::cache
