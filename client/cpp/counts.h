// The counters of Client::stats(). Thread-safe; the numbers are independent of each other.
#pragma once
#include <atomic>
#include <cstdint>

#include "prefixd/client.h"

namespace prefixd::client {

class Counts {
 public:
  void LookedUp(bool ok, uint64_t requested_tokens, uint64_t restorable_tokens) {
    ++lookups_;
    if (!ok) ++failed_lookups_;
    requested_tokens_ += requested_tokens;
    restorable_tokens_ += restorable_tokens;
  }
  void Gathered(uint64_t bytes) { gathered_bytes_ += bytes; }
  void Committed(bool ok, const CommitInfo& info) {
    if (!ok) ++failed_commits_;
    stored_tokens_ += info.stored_tokens;
    duplicate_tokens_ += info.duplicate_tokens;
  }
  void BeganCoarser(uint64_t blocks) { coarser_blocks_ += blocks; }
  ClientStats Read() const {
    return {.lookups = lookups_,
            .failed_lookups = failed_lookups_,
            .requested_tokens = requested_tokens_,
            .restorable_tokens = restorable_tokens_,
            .gathered_bytes = gathered_bytes_,
            .stored_tokens = stored_tokens_,
            .duplicate_tokens = duplicate_tokens_,
            .failed_commits = failed_commits_,
            .coarser_blocks = coarser_blocks_};
  }

 private:
  std::atomic<uint64_t> lookups_ = 0, failed_lookups_ = 0;
  std::atomic<uint64_t> requested_tokens_ = 0, restorable_tokens_ = 0;
  std::atomic<uint64_t> gathered_bytes_ = 0;
  std::atomic<uint64_t> stored_tokens_ = 0, duplicate_tokens_ = 0, failed_commits_ = 0;
  std::atomic<uint64_t> coarser_blocks_ = 0;
};

}  // namespace prefixd::client
