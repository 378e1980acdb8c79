// Whole sequences in and out of a daemon at the level of the wire: by staging, by Put, by Fetch.
//
// One thread a session. Errors are the daemon's, or DataLoss for bytes that are not the source's.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "bench/common/page_source.h"
#include "bench/common/raw_session.h"

namespace prefixd::bench {

// What is moved: full blocks only. Tokens follow from the sequence's number.
struct RawSequence {
  uint64_t space = 0;  // handle
  uint64_t number = 0;
  std::vector<uint32_t> tokens;
  std::vector<v1::ContentKey> content = {};
};
RawSequence MakeSequence(uint64_t space, uint64_t number, uint32_t tokens);

// Time inside the calls that carry bytes, without making them.
struct Moved {
  uint64_t bytes = 0;
  double us = 0;
};

// Requires: a staging of at least one block.
absl::Status StoreStaged(RawSession& session, const PageSource& source, const RawSequence& sequence,
                         Moved* moved = nullptr);
absl::Status StorePut(RawSession& session, const PageSource& source, const RawSequence& sequence,
                      Moved* moved = nullptr);

void FillSequence(const RawSequence& sequence, v1::Sequence* proto);
v1::AcquireRequest AcquireOf(const RawSession& session, const RawSequence& sequence);
// Acquires all of it, waits until it is readable and compares every byte in place. The lease, in
// `answer`, is the caller's to release.
absl::Status AcquireAndCompare(RawSession& session, const PageSource& source,
                               const RawSequence& sequence, v1::Answer* answer);
// Every page of a lease that WaitReady has seen ready, in place.
absl::Status CompareInPlace(const RawSession& session, const PageSource& source,
                            const RawSequence& sequence, const v1::Answer& answer);

// Every piece is read where it was received: its bytes against its XXH3, against `source` too if
// `compare`.
absl::Status FetchAll(RawSession& session, const PageSource& source, const RawSequence& sequence,
                      uint64_t lease, bool compare, Moved* moved = nullptr);

}  // namespace prefixd::bench
