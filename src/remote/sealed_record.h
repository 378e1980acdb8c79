// Seals and opens what follows a record's header (record.h): the body and its seal.
//
// Pure functions, thread-safe.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "remote/bundle_cipher.h"
#include "remote/record.h"

namespace prefixd::remote {

// Returns header, body and seal under the cipher's key. Requires: the cipher was made for kSeal
// with the header's salt, and sealed no record before.
std::string SealRecord(BundleCipher* cipher, const RecordHeader& header, const std::string& body);
// Returns the same with a check of all bytes instead: whoever has them can read and forge them.
std::string CheckedRecord(const std::string& body);

// Opens the body of `bytes`, of which DecodeHeader gave `header` and `body`. `bound` is what the
// cipher was told that seals hold for. False: altered, or sealed with another key or for something
// else.
bool OpenBody(const TenantKeys& keys, std::span<const std::byte> bytes, const RecordHeader& header,
              std::span<const std::byte> body, const std::string& bound,
              std::vector<std::byte>* plain);

}  // namespace prefixd::remote
