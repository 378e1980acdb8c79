// A bundle's record in bytes, v1, little-endian:
//
//   u32 magic "VKB1" | u8 version | u8 seal | u32 bytes of the body | 16-byte salt
//   | body | its seal: 16 bytes, or XXH3-64 of all before it (8 bytes) with Seal::kChecks
//
// Body: u64 generation | 32-byte space id | 16-byte name | 16-byte parent's name | u32 first_token
//   | u32 length, formats | u32 n, n x u32 token
//   | u32 n, n x {u32 start, u32 item_offset, u32 length, 32-byte digest}
//   | u32 n, n x u32 end | u32 n, n x {u32 group, u32 rung, u64 page_bytes}
//   | u32 stripes | with Seal::kChecks: stripes x u64 XXH3-64 of a stripe
//
// A sealed body is AES-256-GCM's (bundle_cipher.h), tied to BoundOf.
//
// Pure functions, thread-safe.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "remote/bundle.h"

namespace prefixd::remote {

inline constexpr uint32_t kBundleMagic = 0x31424b56;  // "VKB1"
inline constexpr uint8_t kBundleVersion = 1;

struct RecordHeader {
  Seal seal = Seal::kAes256Gcm;
  Salt salt{};  // zeros with kChecks
};
inline constexpr size_t kRecordHeaderBytes = 26;

std::string EncodeHeader(const RecordHeader& header, size_t body_bytes);
// kVersion: not a record of this version. kShort: the lengths do not add up. Else `body` is the
// part of `bytes` between header and seal.
BadBundle DecodeHeader(std::span<const std::byte> bytes, RecordHeader* header,
                       std::span<const std::byte>* body);

// What all seals of a bundle hold for: u32 magic | u8 version | u8 seal | salt | name | u32 length,
// formats.
std::string BoundOf(const RecordHeader& header, const ChainName& name, const std::string& formats);

// `sums` are the stripes' with kChecks, else empty.
std::string EncodeBody(const BundleRecord& record, uint32_t stripes,
                       std::span<const uint64_t> sums);
// Sets record, stripes and sums of `opened`, whose seal it reads. Allocates no more than a few
// times the bytes of `body`, whatever they say. False: `body` is not what EncodeBody returns.
bool DecodeBody(std::span<const std::byte> body, OpenedRecord* opened);

}  // namespace prefixd::remote
