// What a child process of a workload can be; each stands in its workload's file.
#pragma once
#include "nlohmann/json.hpp"

namespace prefixd::bench {

int RunShareReader(const nlohmann::json& plan);
int RunShareFetcher(const nlohmann::json& plan);
int RunHitsWorker(const nlohmann::json& plan);
int RunHostileClient(const nlohmann::json& plan);

struct ChildRole {
  const char* name;
  int (*run)(const nlohmann::json& plan);
};
inline constexpr ChildRole kChildRoles[] = {
    {"share-reader", RunShareReader},
    {"share-fetcher", RunShareFetcher},
    {"hits-worker", RunHitsWorker},
    {"hostile-client", RunHostileClient},
};

}  // namespace prefixd::bench
