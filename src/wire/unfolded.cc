#include "wire/unfolded.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace prefixd::wire {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// What protobuf 3.21 takes, rounded up, with what malloc adds.
constexpr uint64_t kMessageBytes = 64;  // a submessage and its pointer
constexpr uint64_t kFieldBytes = 8;     // each field of it
constexpr uint64_t kTextBytes = 64;     // a string beside its characters
constexpr uint64_t kUnknownBytes = 64;  // an unknown field, whose set doubles as it grows
constexpr uint64_t kGroupFactor = 64;   // for each byte of an unknown group

class Walk {
 public:
  Walk(CodedInputStream* in, uint64_t most) : in_(in), most_(most) {}

  // Returns false if the message is malformed or takes too much.
  bool Message(const Descriptor& type) {
    Add(kMessageBytes + kFieldBytes * static_cast<uint64_t>(type.field_count()));
    for (uint32_t tag = in_->ReadTag(); tag != 0; tag = in_->ReadTag()) {
      if (!Field(type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag)), tag)) return false;
    }
    return in_->ConsumedEntireMessage();
  }
  uint64_t bytes() const { return bytes_; }

 private:
  bool Field(const FieldDescriptor* field, uint32_t tag) {
    if (WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED &&
        field != nullptr) {
      return Lengthy(*field);
    }
    const int from = in_->CurrentPosition();
    if (!WireFormatLite::SkipField(in_, tag)) return false;
    const auto skipped = static_cast<uint64_t>(in_->CurrentPosition() - from);
    if (field == nullptr) {
      const bool group =
          WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_START_GROUP;
      return Add(kUnknownBytes + (group ? kGroupFactor : 1) * skipped);
    }
    return Add(field->is_repeated() ? 2 * sizeof(uint64_t) : 0);
  }
  bool Lengthy(const FieldDescriptor& field) {
    uint32_t length = 0;
    if (!in_->ReadVarint32(&length) || length > INT32_MAX) return false;
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      const CodedInputStream::Limit outer = in_->PushLimit(static_cast<int>(length));
      if (!Message(*field.message_type()) || in_->BytesUntilLimit() != 0) return false;
      in_->PopLimit(outer);
      return true;
    }
    return Add(ValueBytes(field, length)) && in_->Skip(static_cast<int>(length));
  }
  static uint64_t ValueBytes(const FieldDescriptor& field, uint64_t length) {
    switch (field.type()) {
      case FieldDescriptor::TYPE_STRING:
      case FieldDescriptor::TYPE_BYTES:
        return kTextBytes + length;
      case FieldDescriptor::TYPE_FIXED32:
      case FieldDescriptor::TYPE_FIXED64:
      case FieldDescriptor::TYPE_SFIXED32:
      case FieldDescriptor::TYPE_SFIXED64:
      case FieldDescriptor::TYPE_FLOAT:
      case FieldDescriptor::TYPE_DOUBLE:
        return length;
      default:  // a number of one byte, in a list that doubles as it grows
        return 2 * sizeof(uint64_t) * length;
    }
  }
  bool Add(uint64_t bytes) {
    bytes_ += bytes;
    return bytes_ <= most_;
  }

  CodedInputStream* const in_;
  const uint64_t most_;
  uint64_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<uint64_t> UnfoldedBytes(const Descriptor& type,
                                       google::protobuf::io::ZeroCopyInputStream* message,
                                       uint64_t most) {
  CodedInputStream in(message);
  Walk walk(&in, most);
  const bool whole = walk.Message(type);
  if (walk.bytes() > most) {
    return absl::InvalidArgumentError(absl::StrCat(type.name(), ": takes more than ", most,
                                                   " bytes of memory, which is the most of one"));
  }
  if (!whole) return absl::InvalidArgumentError(absl::StrCat("the request is no ", type.name()));
  return walk.bytes();
}

}  // namespace prefixd::wire
