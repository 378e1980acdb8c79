// How much memory a message takes once it is parsed, told before it is parsed: an empty item is two
// bytes on the wire and two hundred in memory.
//
// Pure functions.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/zero_copy_stream.h"

namespace prefixd::wire {

// About how many bytes the message of this type takes: its submessages, lists, texts and unknown
// fields, as protobuf keeps them. InvalidArgument for one that takes more than `most`, or is no
// such message; its walk ends there. Costs a look at each field, and at no byte of a list or text.
absl::StatusOr<uint64_t> UnfoldedBytes(const google::protobuf::Descriptor& type,
                                       google::protobuf::io::ZeroCopyInputStream* message,
                                       uint64_t most);

}  // namespace prefixd::wire
