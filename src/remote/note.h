// A note: a short text for whoever has the tenant's keys. It is sealed as a bundle's record is
// (record.h): the same header, the text, the same seal, which holds for the note's name too.
//
// Pure functions, thread-safe.
#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "remote/bundle.h"
#include "remote/names.h"

namespace prefixd::remote {

std::string SealNote(const TenantKeys& keys, Seal seal, const ChainName& name,
                     const std::string& text);
// Returns nullopt if it was altered, is of another name, key or version, or is sealed less than
// `least`.
std::optional<std::string> OpenNote(const TenantKeys& keys, Seal least, const ChainName& name,
                                    std::span<const std::byte> bytes);

}  // namespace prefixd::remote
