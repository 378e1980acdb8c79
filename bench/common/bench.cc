#include "bench/common/bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace prefixd::bench {
namespace {

struct Unit {
  const char* suffix;  // of the figure's name
  double scale;        // shown = value * scale
  const char* text;
};
constexpr Unit kUnits[] = {
    {"_bytes_per_s", 1e-9, " GB/s"},
    {"_bytes", 1.0 / (1 << 20), " MiB"},
    {"_percent", 1, " %"},
    {"_ratio", 1, "x"},
    {"_flop_per_s", 1e-9, " GFLOP/s"},
};

bool EndsWith(const std::string& name, const std::string& suffix) {
  return name.size() > suffix.size() &&
         name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
}

std::string Number(double value) {
  char text[48];
  const bool whole = value == std::floor(value) || std::abs(value) >= 1000;
  if (!whole && std::abs(value) < 0.1) {
    std::snprintf(text, sizeof(text), "%.3g", value);
    return text;
  }
  const int decimals = whole ? 0 : std::abs(value) >= 100 ? 1 : 2;
  std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  return text;
}

std::string Micros(double us) {
  if (us >= 1e6) return Number(us * 1e-6) + " s";
  return us >= 1e3 ? Number(us * 1e-3) + " ms" : Number(us) + " us";
}

std::string Words(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

}  // namespace

std::string ToText(const Figure& figure) {
  const std::string& name = figure.name;
  if (EndsWith(name, "_us"))
    return Words(name.substr(0, name.size() - 3)) + " " + Micros(figure.value);
  for (const Unit& unit : kUnits) {
    const std::string suffix = unit.suffix;
    if (!EndsWith(name, suffix)) continue;
    return Words(name.substr(0, name.size() - suffix.size())) + " " +
           Number(figure.value * unit.scale) + unit.text;
  }
  return Words(name) + " " + Number(figure.value);
}

Bench::Bench(Options options) : options_(std::move(options)) {
  if (ShowsRows()) std::printf("%s\n", options_.workload.c_str());
}

std::string MicrosText(double us) { return Micros(us); }

std::string RateText(double bytes, double us) { return Number(bytes * 1e-3 / us) + " GB/s"; }

std::string BytesText(double bytes) {
  if (std::abs(bytes) >= (1 << 30)) return Number(bytes / (1 << 30)) + " GiB";
  if (std::abs(bytes) >= (1 << 20)) return Number(bytes / (1 << 20)) + " MiB";
  return Number(bytes / 1024) + " KiB";
}

std::string ToText(const Target& target) {
  std::string text = target.name + ": " + target.ours;
  if (!target.reference.empty()) text += ", " + target.reference;
  text += ", " + target.measure + " " + Number(target.seen) + target.unit + ", target " +
          (target.at_most ? "<= " : ">= ") + Number(target.limit) + target.unit + ", " +
          (target.Holds() ? "holds" : "falls short") + " (" + std::to_string(target.runs) +
          (target.runs == 1 ? " run" : " runs");
  if (target.spread_percent > 0) text += ", spread " + Number(target.spread_percent) + " %";
  return text + ")";
}

bool Bench::Wants(const std::string& family) const {
  const std::vector<std::string>& only = options_.only;
  return only.empty() || std::find(only.begin(), only.end(), family) != only.end();
}

uint64_t Bench::Parameter(const std::string& name, uint64_t smoke, uint64_t quick, uint64_t real) {
  const uint64_t value = options_.smoke ? smoke : options_.quick ? quick : real;
  parameters_.push_back({name, static_cast<double>(value)});
  if (ShowsRows()) std::printf("  with %s\n", ToText(parameters_.back()).c_str());
  return value;
}

bool Bench::Check(bool holds, const std::string& what) {
  if (holds) return true;
  failures_.push_back(what);
  std::fprintf(stderr, "prefixd-bench: %s: wrong: %s\n", options_.workload.c_str(), what.c_str());
  return false;
}

void Bench::Add(Row row) {
  if (ShowsRows()) {
    std::printf("  %-36s", row.name.c_str());
    const char* separator = " ";
    for (const Figure& figure : row.figures) {
      std::printf("%s%s", separator, ToText(figure).c_str());
      separator = ", ";
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  rows_.push_back(std::move(row));
}

void Bench::Judge(Target target) {
  if (!options_.quiet) {
    std::printf("%s%s\n", options_.targets_only ? "" : "  ", ToText(target).c_str());
    std::fflush(stdout);
  }
  targets_.push_back(std::move(target));
}

void Bench::Note(const std::string& text) {
  if (!options_.quiet) {
    std::printf("%s%s\n", options_.targets_only ? "" : "  ", text.c_str());
    std::fflush(stdout);
  }
  notes_.push_back(text);
}

}  // namespace prefixd::bench
