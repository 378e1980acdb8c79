#include "block/space_identity.h"

#include <algorithm>
#include <map>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "block/identity_fields.h"

namespace prefixd::block {
namespace {

template <typename T>
void WriteValue(base::ByteWriter& out, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    out.Framed(value);
  } else if constexpr (std::is_same_v<T, base::Digest256>) {
    out.Raw(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    out.Fixed(static_cast<uint8_t>(value));
  } else {
    out.Fixed(value);
  }
}

template <typename T>
void WriteValues(base::ByteWriter& out, const std::vector<T>& values) {
  out.Fixed(static_cast<uint32_t>(values.size()));
  for (const T& value : values) WriteValue(out, value);
}

class Encoder {
 public:
  Encoder() { out_.Fixed(kIdentityVersion); }
  template <typename T>
  void Leaf(const char*, const T& value) {
    WriteValue(out_, value);
  }
  template <typename T>
  void Leaf(const char*, const std::vector<T>& values, uint32_t) {
    WriteValues(out_, values);
  }
  template <typename T, typename Visit>
  void Struct(const char*, T& value, Visit visit) {
    visit(value);
  }
  template <typename T, typename Visit>
  void List(const char*, const std::vector<T>& values, uint32_t, Visit visit) {
    out_.Fixed(static_cast<uint32_t>(values.size()));
    for (const T& value : values) visit(value);
  }
  template <typename T, typename Visit>
  void Tail(const char* name, const std::vector<T>& values, uint32_t max, Visit visit) {
    if (!values.empty()) List(name, values, max, visit);
  }
  std::string Take() { return out_.Take(); }

 private:
  base::ByteWriter out_;
};

// AtEnd() returns false after a count above its limit or a read past the end. Input never makes it
// allocate more than its own size and the limits of identity_fields.h.
class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> encoded) : in_(encoded) {
    ok_ = in_.Fixed<uint32_t>() == kIdentityVersion;
  }
  template <typename T>
  void Leaf(const char*, T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      value = in_.Framed();
    } else if constexpr (std::is_same_v<T, base::Digest256>) {
      const std::span<const std::byte> raw = in_.Raw(value.size());
      if (raw.size() == value.size()) std::copy(raw.begin(), raw.end(), value.begin());
    } else if constexpr (std::is_same_v<T, bool>) {
      const uint8_t flag = in_.Fixed<uint8_t>();
      ok_ = ok_ && flag <= 1;
      value = flag != 0;
    } else {
      value = in_.Fixed<T>();
    }
  }
  template <typename T>
  void Leaf(const char* name, std::vector<T>& values, uint32_t max) {
    List(name, values, max, [&](T& value) { Leaf(name, value); });
  }
  template <typename T, typename Visit>
  void Struct(const char*, T& value, Visit visit) {
    visit(value);
  }
  template <typename T, typename Visit>
  void List(const char*, std::vector<T>& values, uint32_t max, Visit visit) {
    const uint32_t count = in_.Fixed<uint32_t>();
    ok_ = ok_ && in_.ok() && count <= max;
    if (!ok_) return;
    values.resize(count);
    for (T& value : values) visit(value);
  }
  template <typename T, typename Visit>
  void Tail(const char* name, std::vector<T>& values, uint32_t max, Visit visit) {
    if (ok_ && in_.remaining() > 0) List(name, values, max, visit);
  }
  bool AtEnd() const { return ok_ && in_.ok() && in_.remaining() == 0; }

 private:
  base::ByteReader in_;
  bool ok_ = true;
};

// Names an element of a list for people: groups by their first layer, their ladders' entries as
// formats.
template <typename T>
std::string NameOf(const char* list, size_t i, const T& element) {
  if constexpr (std::is_same_v<T, LayerGroup>) {
    return element.layers.empty() ? std::string() : absl::StrCat("layer ", element.layers[0], ", ");
  } else if constexpr (std::is_same_v<T, quant::KvFormat>) {
    return absl::StrCat("format ", i, ", ");
  } else {
    return absl::StrCat(list, "[", i, "].");
  }
}

// Collects every leaf's encoded bytes under its full name, and every list's length under the list's
// name.
class Flattener {
 public:
  struct Value {
    std::string shown;  // the leaf's name for people
    std::string bytes;
  };
  using Leaves = std::vector<std::pair<std::string, Value>>;  // by path, in order

  template <typename T>
  void Leaf(const char* name, const T& value) {
    base::ByteWriter out;
    WriteValue(out, value);
    Add(name, out.Take(), name);
  }
  template <typename T>
  void Leaf(const char* name, const std::vector<T>& values, uint32_t) {
    base::ByteWriter out;
    WriteValues(out, values);
    Add(name, out.Take(), name);
  }
  template <typename T, typename Visit>
  void Struct(const char* name, const T& value, Visit visit) {
    const std::string step = absl::StrCat(name, ".");
    Under(step, step, [&] { visit(value); });
  }
  template <typename T, typename Visit>
  void List(const char* name, const std::vector<T>& values, uint32_t, Visit visit) {
    Add(name, absl::StrCat(values.size()), std::is_same_v<T, quant::KvFormat> ? "formats" : name);
    for (size_t i = 0; i < values.size(); ++i) {
      Under(absl::StrCat(name, "[", i, "]."), NameOf(name, i, values[i]),
            [&] { visit(values[i]); });
    }
  }
  template <typename T, typename Visit>
  void Tail(const char* name, const std::vector<T>& values, uint32_t max, Visit visit) {
    List(name, values, max, visit);
  }
  Leaves Take() { return std::move(leaves_); }

 private:
  void Add(const char* name, std::string bytes, const char* shown) {
    leaves_.emplace_back(path_ + name, Value{.shown = shown_ + shown, .bytes = std::move(bytes)});
  }
  template <typename Visit>
  void Under(const std::string& step, const std::string& shown, Visit visit) {
    const size_t path_bytes = path_.size(), shown_bytes = shown_.size();
    path_ += step;
    shown_ += shown;
    visit();
    path_.resize(path_bytes);
    shown_.resize(shown_bytes);
  }

  std::string path_, shown_;
  Leaves leaves_;
};

Flattener::Leaves Flatten(const SpaceIdentity& identity) {
  Flattener flattener;
  VisitSpaceIdentity(flattener, identity);
  return flattener.Take();
}

}  // namespace

std::string Encode(const SpaceIdentity& identity) {
  Encoder encoder;
  VisitSpaceIdentity(encoder, identity);
  return encoder.Take();
}

absl::StatusOr<SpaceIdentity> DecodeSpaceIdentity(const std::string& encoded) {
  SpaceIdentity identity;
  Decoder decoder(base::AsBytes(encoded));
  VisitSpaceIdentity(decoder, identity);
  if (!decoder.AtEnd()) {
    return absl::DataLossError(absl::StrCat("space identity: ", encoded.size(),
                                            " bytes are not an encoding of version ",
                                            kIdentityVersion));
  }
  if (absl::Status status = NormalizeAndValidate(&identity); !status.ok()) {
    return absl::DataLossError(absl::StrCat("space identity: decoded to an invalid value: ",
                                            std::string(status.message())));
  }
  if (Encode(identity) != encoded) {
    return absl::DataLossError("space identity: decoded to a value that is not normal");
  }
  return identity;
}

SpaceId IdOf(const SpaceIdentity& identity) {
  return base::Sha256(base::AsBytes(Encode(identity)));
}

std::vector<std::string> DifferingFields(const SpaceIdentity& a, const SpaceIdentity& b) {
  std::map<std::string, std::string> leaves_b;
  for (auto& [path, value] : Flatten(b)) leaves_b.emplace(path, std::move(value.bytes));
  std::vector<std::string> names;
  for (const auto& [path, value] : Flatten(a)) {
    const auto other = leaves_b.find(path);
    if (other != leaves_b.end() && other->second != value.bytes) names.push_back(value.shown);
  }
  return names;
}

uint64_t PayloadBytesPerToken(const SpaceIdentity& identity) {
  uint64_t bytes = 0;
  for (const LayerGroup& group : identity.groups) {
    if (group.kind == LayerKind::kState) continue;
    bytes += group.layers.size() * TokenBytesPerLayer(group, 0);
  }
  return bytes;
}

}  // namespace prefixd::block
