// Version 1 of the wire only grows: every message, field, enum value and method that was ever
// published stands in golden_descriptor.txt, and still means what it meant.
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "prefixd/v1/admin.pb.h"
#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::wire {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::ServiceDescriptor;

using Lines = std::vector<std::string>;

std::string FieldLine(const FieldDescriptor& field) {
  std::ostringstream line;
  line << "field " << field.containing_type()->full_name() << " " << field.number() << " "
       << field.name() << " "
       << (field.is_repeated() ? field.is_packed() ? "packed " : "repeated " : "")
       << field.type_name();
  if (field.message_type() != nullptr) line << " " << field.message_type()->full_name();
  if (field.enum_type() != nullptr) line << " " << field.enum_type()->full_name();
  if (field.real_containing_oneof() != nullptr)
    line << " oneof " << field.real_containing_oneof()->name();
  return line.str();
}

void AddEnum(const EnumDescriptor& type, Lines* lines) {
  for (int i = 0; i < type.value_count(); ++i) {
    lines->push_back("value " + type.full_name() + " " + std::to_string(type.value(i)->number()) +
                     " " + type.value(i)->name());
  }
}

void AddMessage(const Descriptor& type, Lines* lines) {
  lines->push_back("message " + type.full_name());
  for (int i = 0; i < type.field_count(); ++i) lines->push_back(FieldLine(*type.field(i)));
  for (int i = 0; i < type.enum_type_count(); ++i) AddEnum(*type.enum_type(i), lines);
  for (int i = 0; i < type.nested_type_count(); ++i) AddMessage(*type.nested_type(i), lines);
}

void AddService(const ServiceDescriptor& service, Lines* lines) {
  for (int i = 0; i < service.method_count(); ++i) {
    const auto& method = *service.method(i);
    lines->push_back(
        "method " + method.full_name() + " " + (method.client_streaming() ? "stream " : "") +
        method.input_type()->full_name() + " -> " + (method.server_streaming() ? "stream " : "") +
        method.output_type()->full_name());
  }
}

Lines Describe(const FileDescriptor& file) {
  Lines lines;
  for (int i = 0; i < file.message_type_count(); ++i) AddMessage(*file.message_type(i), &lines);
  for (int i = 0; i < file.enum_type_count(); ++i) AddEnum(*file.enum_type(i), &lines);
  for (int i = 0; i < file.service_count(); ++i) AddService(*file.service(i), &lines);
  return lines;
}

Lines ReadLines(const std::string& path) {
  Lines lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

constexpr char kGolden[] = PREFIXD_SOURCE_DIR "/tests/wire/golden_descriptor.txt";

// PREFIXD_UPDATE_GOLDEN=1 adds what is new, and refuses to lose a line.
TEST(GoldenDescriptorTest, NothingPublishedHasChanged) {
  Lines now = Describe(*v1::AttachRequest::descriptor()->file());
  for (std::string& line : Describe(*v1::GetStatsRequest::descriptor()->file()))
    now.push_back(std::move(line));
  const Lines golden = ReadLines(kGolden);
  const std::set<std::string> known(golden.begin(), golden.end());
  const std::set<std::string> present(now.begin(), now.end());
  for (const std::string& line : golden) {
    EXPECT_TRUE(present.contains(line))
        << "changed or removed, which version 1 never does: " << line;
  }
  if (HasFailure()) return;
  if (std::getenv("PREFIXD_UPDATE_GOLDEN") != nullptr) {
    std::ofstream file(kGolden);
    for (const std::string& line : now) file << line << "\n";
    return;
  }
  for (const std::string& line : now) {
    EXPECT_TRUE(known.contains(line))
        << "new; PREFIXD_UPDATE_GOLDEN=1 wire_test adds it to " << kGolden << ": " << line;
  }
}

}  // namespace
}  // namespace prefixd::wire
