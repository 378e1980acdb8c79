#include "cache/verbs/prefix_tree.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace prefixd::cache {
namespace {

// A block that requests read.
struct Joint {
  uint64_t node_id = 0;
  uint64_t parent = 0;
  block::SpaceId space{};
  index::PathBlock block;
  uint64_t requests = 0;  // that read it
  double age_s = 0;
};

uint64_t TokensRead(const block::HotPrefix& prefix) {
  return prefix.requests * (prefix.to_token - prefix.from_token);
}

void Extend(const Joint& joint, block::HotPrefix& prefix) {
  prefix.to_token = joint.block.end;
  prefix.ram_bytes += joint.block.ram_bytes;
  prefix.ssd_bytes += joint.block.ssd_bytes;
  prefix.block_hash = joint.block.hash;
}

// Returns all prefixes, parents first. `joints`: parents first.
std::vector<block::HotPrefix> Compress(std::span<const Joint> joints) {
  std::vector<block::HotPrefix> prefixes;
  absl::flat_hash_map<uint64_t, std::pair<const Joint*, uint32_t>> at;  // place, from 1
  for (const Joint& joint : joints) {
    const auto parent = at.find(joint.parent);
    if (parent != at.end() && parent->second.first->requests == joint.requests) {
      Extend(joint, prefixes[parent->second.second - 1]);  // the same requests read both
      at[joint.node_id] = {&joint, parent->second.second};
      continue;
    }
    block::HotPrefix& prefix = prefixes.emplace_back(
        block::HotPrefix{.parent = parent == at.end() ? 0 : parent->second.second,
                         .space = joint.space,
                         .from_token = joint.block.begin,
                         .requests = joint.requests,
                         .age_s = joint.age_s});
    Extend(joint, prefix);
    at[joint.node_id] = {&joint, static_cast<uint32_t>(prefixes.size())};
  }
  return prefixes;
}

// Returns which prefixes to keep: those of which most tokens were read, with what is above them.
std::vector<bool> Choose(std::span<const block::HotPrefix> prefixes, uint32_t most) {
  std::vector<uint32_t> order(prefixes.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](uint32_t i) { return TokensRead(prefixes[i]); });
  std::vector<bool> kept(prefixes.size(), false);
  size_t left = most;
  for (const uint32_t hottest : order) {
    std::vector<uint32_t> missing;
    for (uint32_t place = hottest + 1; place != 0; place = prefixes[place - 1].parent) {
      if (kept[place - 1]) break;
      missing.push_back(place - 1);
    }
    if (missing.size() > left) continue;
    for (const uint32_t i : missing) kept[i] = true;
    left -= missing.size();
    if (left == 0) break;
  }
  return kept;
}

// Lists a tree from its roots, and what goes on from one prefix by its requests.
class InOrder {
 public:
  InOrder(std::span<const block::HotPrefix> prefixes, const std::vector<bool>& kept)
      : prefixes_(prefixes), below_(prefixes.size() + 1) {
    for (uint32_t i = 0; i < prefixes.size(); ++i) {
      if (kept[i]) below_[prefixes[i].parent].push_back(i);
    }
    for (std::vector<uint32_t>& siblings : below_) {
      std::ranges::stable_sort(siblings, std::greater<>(),
                               [&](uint32_t i) { return prefixes[i].requests; });
    }
  }

  std::vector<block::HotPrefix> List() {
    std::vector<block::HotPrefix> list;
    std::vector<std::pair<uint32_t, uint32_t>> todo;  // a place before, and its parent's after
    Push(0, 0, todo);
    while (!todo.empty()) {
      const auto [i, parent] = todo.back();
      todo.pop_back();
      list.push_back(prefixes_[i]);
      list.back().parent = parent;
      Push(i + 1, static_cast<uint32_t>(list.size()), todo);
    }
    return list;
  }

 private:
  void Push(uint32_t place, uint32_t parent,
            std::vector<std::pair<uint32_t, uint32_t>>& todo) const {
    for (size_t i = below_[place].size(); i > 0; --i) {
      todo.emplace_back(below_[place][i - 1], parent);
    }
  }

  const std::span<const block::HotPrefix> prefixes_;
  std::vector<std::vector<uint32_t>> below_;  // by place, from 1; 0: the roots
};

}  // namespace

void PrefixTree::Add(const block::SpaceId& space, std::span<const index::PathBlock> path,
                     double age_s) {
  for (size_t i = 0; i < path.size(); ++i) {
    const auto [it, added] = blocks_.try_emplace(path[i].node_id);
    if (!added) continue;
    it->second = {.block = path[i],
                  .parent = i + 1 < path.size() ? path[i + 1].node_id : kNone,
                  .space = space,
                  .age_s = age_s};
  }
  if (path.empty()) return;
  Block& last = blocks_.at(path.front().node_id);
  last.age_s = last.requests == 0 ? age_s : std::min(last.age_s, age_s);
  ++last.requests;
}

std::vector<block::HotPrefix> PrefixTree::Hottest(uint32_t most) const {
  std::vector<Joint> joints;
  joints.reserve(blocks_.size());
  for (const auto& [id, block] : blocks_) {
    joints.push_back({.node_id = id,
                      .parent = block.parent,
                      .space = block.space,
                      .block = block.block,
                      .requests = block.requests,
                      .age_s = block.age_s});
  }
  // Parents first; the rest only for one order of equals.
  std::ranges::sort(joints, {}, [](const Joint& joint) {
    return std::make_tuple(joint.block.end, joint.node_id);
  });
  absl::flat_hash_map<uint64_t, size_t> place;
  for (size_t i = 0; i < joints.size(); ++i) place[joints[i].node_id] = i;
  for (size_t i = joints.size(); i > 0; --i) {
    const Joint& joint = joints[i - 1];
    const auto parent = place.find(joint.parent);
    if (parent == place.end()) continue;
    Joint& above = joints[parent->second];
    above.requests += joint.requests;
    above.age_s = std::min(above.age_s, joint.age_s);
  }
  const std::vector<block::HotPrefix> all = Compress(joints);
  return InOrder(all, Choose(all, most)).List();
}

}  // namespace prefixd::cache
