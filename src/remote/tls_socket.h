// OpenSSL over a socket that never waits and never raises SIGPIPE.
//
// Thread-safe.
#pragma once
#include <string>

struct bio_st;

namespace prefixd::remote {

// Reads and writes a socket that somebody else closes. Null: out of memory.
bio_st* NewSocketBio(int socket);

// Takes the errors that OpenSSL noted on this thread. Returns the first in words, or `otherwise`.
std::string TakeTlsError(const std::string& otherwise);

}  // namespace prefixd::remote
