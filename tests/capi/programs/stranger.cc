// A process with a protobuf of its own, which knows another file "prefixd/v1/prefix_cache.proto",
// or with one of another version (other_protobuf.c), loads libprefixd.so as a plug-in would. Usage:
// stranger LIBRARY ADDRESS. Prints "cached N stored N", or what is wrong.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "prefixd.h"
#ifndef OTHER_PROTOBUF
#include "google/protobuf/descriptor.h"

#include "prefixd/v1/prefix_cache.pb.h"
#endif

namespace {

constexpr uint32_t kTokens = 200, kHeads = 2, kDim = 64;

struct Library {
  explicit Library(const char* path) : handle(dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND)) {
    if (handle == nullptr) {
      std::printf("%s\n", dlerror());
      std::exit(1);
    }
  }
  template <typename Function>
  Function* Get(Function*, const char* name) const {
    void* found = dlsym(handle, name);
    if (found == nullptr) {
      std::printf("%s is missing\n", name);
      std::exit(1);
    }
    return reinterpret_cast<Function*>(found);
  }
  void* handle;
};
#define CALL(name) library.Get(static_cast<decltype(&name)>(nullptr), #name)

// The process's own protobuf, at work.
std::string Stranger() {
#ifdef OTHER_PROTOBUF
  return "";
#else
  stranger::v1::AcquireRequest message;
  message.set_name("stranger");
  for (uint32_t i = 0; i < 100; ++i) message.add_numbers(i * i);
  stranger::v1::AcquireRequest parsed;
  if (!parsed.ParseFromString(message.SerializeAsString())) return "not parsed";
  const auto* file = google::protobuf::DescriptorPool::generated_pool()->FindFileByName(
      "prefixd/v1/prefix_cache.proto");
  if (file == nullptr || file->package() != "stranger.v1") return "the pool has another file";
  return parsed.ShortDebugString();
#endif
}

prefixd_planes PlanesOf(std::vector<uint8_t>* raw) {
  prefixd_planes planes = PREFIXD_INIT(prefixd_planes);
  planes.codes = raw->data();
  return planes;
}

prefixd_space* OpenSpace(const Library& library, prefixd_client* client) {
  prefixd_format format{};
  format.key.codec = format.value.codec = PREFIXD_RAW;
  format.key.dtype = format.value.dtype = PREFIXD_BF16;
  prefixd_layer layer = PREFIXD_INIT(prefixd_layer);
  layer.kv_heads = kHeads;
  layer.key_dim = layer.value_dim = kDim;
  layer.format_count = 1;
  layer.formats = &format;
  const uint8_t digest[32] = {9};
  prefixd_space_spec spec = PREFIXD_INIT(prefixd_space_spec);
  spec.model = "stranger";
  spec.weights_digest = digest;
  spec.layers = &layer;
  spec.layer_count = 1;
  return CALL(prefixd_open_space)(client, &spec);
}

int RoundTrip(const Library& library, const char* address) {
  prefixd_options options = PREFIXD_INIT(prefixd_options);
  options.address = address;
  prefixd_client* client = CALL(prefixd_attach)(&options);
  if (!CALL(prefixd_attached)(client, 20'000)) return std::printf("not attached\n"), 1;
  prefixd_space* space = OpenSpace(library, client);
  if (space == nullptr) return std::printf("%s\n", CALL(prefixd_last_error)()), 1;

  std::mt19937 random(1);
  std::vector<uint8_t> key(kHeads * kTokens * kDim * 2), value(key.size());
  for (auto* plane : {&key, &value}) {
    for (uint8_t& byte : *plane) byte = static_cast<uint8_t>(random());
  }
  std::vector<uint32_t> tokens(kTokens);
  for (uint32_t i = 0; i < kTokens; ++i) tokens[i] = i * 31 % 1009;

  prefixd_lease* before = CALL(prefixd_acquire)(space, tokens.data(), kTokens, nullptr, nullptr);
  const uint32_t cached = CALL(prefixd_wait_all)(before, 0);
  CALL(prefixd_release)(before, nullptr);
  prefixd_plan* plan = CALL(prefixd_reserve)(space, tokens.data(), kTokens, nullptr);
  const prefixd_planes k = PlanesOf(&key), v = PlanesOf(&value);
  prefixd_commit_info info = PREFIXD_INIT(prefixd_commit_info);
  if (CALL(prefixd_write_packed)(plan, 0, 0, kTokens, &k, &v) != PREFIXD_OK ||
      CALL(prefixd_commit)(plan, kTokens, nullptr, &info) != PREFIXD_OK) {
    return std::printf("%s\n", CALL(prefixd_last_error)()), 1;
  }
  CALL(prefixd_abandon)(plan);

  std::vector<uint8_t> key_back(key.size()), value_back(value.size());
  const prefixd_planes kb = PlanesOf(&key_back), vb = PlanesOf(&value_back);
  prefixd_lease* lease = CALL(prefixd_acquire)(space, tokens.data(), kTokens, nullptr, nullptr);
  const uint32_t usable = CALL(prefixd_wait_all)(lease, 0);
  if (usable != kTokens || CALL(prefixd_gather)(lease, 0, 0, kTokens, &kb, &vb) != PREFIXD_OK) {
    return std::printf("%u tokens: %s\n", usable, CALL(prefixd_last_error)()), 1;
  }
  CALL(prefixd_detach)(client);  // in any order
  CALL(prefixd_close_space)(space);
  CALL(prefixd_release)(lease, nullptr);
  if (key_back != key || value_back != value) return std::printf("other bytes came back\n"), 1;
  std::printf("cached %u stored %u\n", cached, info.stored_tokens);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: %s LIBRARY ADDRESS\n", argv[0]), 2;
  const std::string before = Stranger();
  const Library library(argv[1]);
  if (Stranger() != before) return std::printf("loading changed the process's protobuf\n"), 1;
  if (const int failed = RoundTrip(library, argv[2]); failed != 0) return failed;
  if (Stranger() != before) return std::printf("using changed the process's protobuf\n"), 1;
  dlclose(library.handle);
  return 0;
}
