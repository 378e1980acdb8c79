#include "bench/remote/raw_redis.h"

#include "absl/strings/str_cat.h"

#include "base/bytes.h"

namespace prefixd::bench {
namespace {

std::string Bulk(const std::string& text) {
  return absl::StrCat("$", text.size(), "\r\n", text, "\r\n");
}

}  // namespace

size_t RawAnswerBytes(const std::vector<size_t>& stripe_bytes) {
  size_t bytes = absl::StrCat("*", stripe_bytes.size(), "\r\n").size();
  for (const size_t length : stripe_bytes) {
    bytes += absl::StrCat("$", length, "\r\n").size() + length + 2;
  }
  return bytes;
}

bool RawLoad(const LoopbackSocket& socket, const std::string& key,
             const std::vector<size_t>& stripe_bytes, std::span<std::byte> to) {
  std::string command =
      absl::StrCat("*", 2 + stripe_bytes.size(), "\r\n") + Bulk("HMGET") + Bulk(key);
  for (size_t i = 0; i < stripe_bytes.size(); ++i) command += Bulk(std::to_string(i));
  return socket.Write(base::AsBytes(command)) &&
         socket.Read(to.first(RawAnswerBytes(stripe_bytes))) && to[0] == std::byte{'*'};
}

std::string RawFields(const remote::SealedBundle& bundle) {
  std::string fields = Bulk("r") + Bulk(bundle.record);
  for (size_t i = 0; i < bundle.stripes.size(); ++i) {
    fields += Bulk(std::to_string(i));
    fields += Bulk(std::string(base::AsText(bundle.stripes[i])));
  }
  return fields;
}

bool RawStore(const LoopbackSocket& socket, const std::string& key, size_t stripes,
              const std::string& fields) {
  const std::string head =
      absl::StrCat("*", 2 + 2 * (1 + stripes), "\r\n") + Bulk("HSET") + Bulk(key);
  std::string line;
  return socket.Write(base::AsBytes(head)) && socket.Ask(fields, &line) && line.starts_with(":");
}

}  // namespace prefixd::bench
