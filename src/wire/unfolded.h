// Tells before a message is parsed how much memory it takes afterwards: an empty item is two bytes
// on the wire and two hundred in memory.
//
// Pure functions.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/zero_copy_stream.h"

namespace prefixd::wire {

// Returns about how many bytes a message of this type takes: its submessages, lists, texts and
// unknown fields, as protobuf keeps them. InvalidArgument, as soon as that is seen, for a message
// that takes more than `most` or is not of this type. Looks at each field, but at no byte of a list
// or text.
absl::StatusOr<uint64_t> UnfoldedBytes(const google::protobuf::Descriptor& type,
                                       google::protobuf::io::ZeroCopyInputStream* message,
                                       uint64_t most);

}  // namespace prefixd::wire
