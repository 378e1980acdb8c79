#include "client/cli/json.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"

#include "client/cli/compression.h"
#include "client/cli/names.h"

namespace prefixd::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using nlohmann::ordered_json;

void Mend(const Descriptor& type, ordered_json* object);

// Returns the lists that become an object: their elements have a name each.
bool IsNamed(const Descriptor* type) {
  return type == v1::Count::descriptor() || type == v1::Latency::descriptor() ||
         type == v1::Ages::descriptor() || type == v1::GetConfigReply::Setting::descriptor();
}

// Turns {"name": n, "value": v} into v. Elements with more members keep those.
ordered_json ByName(const ordered_json& list) {
  ordered_json object = ordered_json::object();
  for (ordered_json one : list) {
    const std::string name = one["name"];
    one.erase("name");
    object[name] = one.size() == 1 ? one["value"] : one;
  }
  return object;
}

// "MATCH_KIND_EXACT" becomes "exact". The printer writes a value that it does not know as a number.
std::string Word(const FieldDescriptor& field, const ordered_json& value) {
  if (value.is_number()) return absl::StrCat("unknown (", value.get<int>(), ")");
  const std::string& first = field.enum_type()->value(0)->name();
  return absl::AsciiStrToLower(value.get<std::string>().substr(first.rfind('_') + 1));
}

void MendValue(const FieldDescriptor& field, ordered_json* value) {
  std::string bytes;
  switch (field.type()) {
    case FieldDescriptor::TYPE_MESSAGE:
      return Mend(*field.message_type(), value);
    case FieldDescriptor::TYPE_ENUM:
      *value = Word(field, *value);
      return;
    case FieldDescriptor::TYPE_BYTES:
      absl::Base64Unescape(value->get<std::string>(), &bytes);  // which the printer wrote
      *value = HexId(bytes);
      return;
    case FieldDescriptor::TYPE_UINT64:
      *value = std::stoull(value->get<std::string>());
      return;
    case FieldDescriptor::TYPE_FIXED64:  // ids
      *value = HexId(uint64_t{std::stoull(value->get<std::string>())});
      return;
    default:
      return;
  }
}

// Turns what protobuf's printer wrote of a message into what json.h promises.
void Mend(const Descriptor& type, ordered_json* object) {
  for (auto& [name, value] : object->items()) {
    const FieldDescriptor& field = *type.FindFieldByName(name);
    if (!field.is_repeated()) {
      MendValue(field, &value);
      continue;
    }
    for (ordered_json& one : value) MendValue(field, &one);
    if (IsNamed(field.message_type())) value = ByName(value);
  }
}

ordered_json Fields(const Message& message) {
  google::protobuf::util::JsonPrintOptions options;
#if GOOGLE_PROTOBUF_VERSION < 5026000
  options.always_print_primitive_fields = true;
#else  // protobuf 26 and later
  options.always_print_fields_with_no_presence = true;
#endif
  options.preserve_proto_field_names = true;
  std::string text;
  // A message whose texts are not UTF-8 does not pass; protobuf receives none.
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) return {};
  ordered_json json = ordered_json::parse(text);
  Mend(*message.GetDescriptor(), &json);
  return json;
}

ordered_json Stats(const v1::GetStatsReply& stats) {
  ordered_json json = Fields(stats);
  for (const v1::Latency& latency : stats.latencies()) {
    ordered_json& entry = json["latencies"][latency.name()];
    entry["p50_us"] = QuantileMicros(latency, 0.5);
    entry["p90_us"] = QuantileMicros(latency, 0.9);
    entry["p99_us"] = QuantileMicros(latency, 0.99);
  }
  return json;
}

// Returns one line: the members of `first`, then those of `then`.
std::string Line(ordered_json first, const ordered_json& then = ordered_json::object()) {
  first.update(then);
  return first.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string ReplyJson(const Message& reply) { return Line(Fields(reply)); }

std::string StatusJson(const StatusInput& input) {
  return Line({{"server", input.address}, {"health", input.health}}, Stats(input.stats));
}

std::string StatsJson(const v1::GetStatsReply& stats) { return Line(Stats(stats)); }

std::string SpacesJson(const v1::ListSpacesReply& reply) {
  ordered_json json = Fields(reply);
  for (int i = 0; i < reply.spaces_size(); ++i) {
    ordered_json& space = json["spaces"][static_cast<size_t>(i)];
    const ordered_json stats = space["stats"];
    space.erase("stats");
    space.update(stats);
    space["identity"].erase(
        "salt");  // the daemon sends none; salt_digest says whether there is one
    space["compression_ratio"] = ordered_json::object();
    for (const FormatRatio& format : Compression(reply.spaces(i).identity())) {
      space["compression_ratio"][format.format] = format.ratio;
    }
  }
  for (ordered_json& told : json["other_hosts"]) told["identity"].erase("salt");
  return Line(json);
}

std::string MatchJson(const MatchInput& input) {
  return Line({{"space_id", HexId(input.space.stats().space_id())},
               {"model", input.space.identity().model()},
               {"requested_tokens", input.requested_tokens}},
              Fields(input.answer));
}

std::string PinJson(const PinInput& input) {
  return Line({{"space_id", HexId(input.space.stats().space_id())},
               {"requested_tokens", input.requested_tokens},
               {"ttl_s", input.ttl_s}},
              Fields(input.reply));
}

std::string LimitsJson(const v1::SetSpaceLimitsRequest& request,
                       const v1::SetSpaceLimitsReply& reply) {
  return Line(Fields(request), Fields(reply));
}

}  // namespace prefixd::cli
