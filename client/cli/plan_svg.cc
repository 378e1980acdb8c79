// The plot of prefixctl plan: hit rate over RAM, a line for each SSD size.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "client/cli/plan.h"

namespace prefixd::cli {
namespace {

constexpr double kWidth = 720, kHeight = 420;
constexpr double kLeft = 64, kRight = 680, kTop = 48, kBottom = 330;
// Told apart without colours too: each line has its own dashes and its name at its end.
constexpr const char* kDashes[] = {"", "8 4", "2 3", "10 3 2 3", "5 5"};

// Follows the page's colours: dark text on light, light text on dark.
constexpr const char* kStyle =
    "<style>\n"
    "  .back { fill: #ffffff } text { fill: #1f2328; font: 12px sans-serif }\n"
    "  .title { font-size: 15px; font-weight: bold }\n"
    "  .grid { stroke: #d0d7de } .axis { stroke: #57606a } .most { stroke: #57606a }\n"
    "  .line { fill: none; stroke-width: 2 }\n"
    "  .c0 { stroke: #0969da } .c1 { stroke: #cf222e } .c2 { stroke: #1a7f37 }\n"
    "  .c3 { stroke: #8250df } .c4 { stroke: #9a6700 }\n"
    "  @media (prefers-color-scheme: dark) {\n"
    "    .back { fill: #0d1117 } text { fill: #e6edf3 }\n"
    "    .grid { stroke: #30363d } .axis { stroke: #8b949e } .most { stroke: #8b949e }\n"
    "    .c0 { stroke: #58a6ff } .c1 { stroke: #ff7b72 } .c2 { stroke: #3fb950 }\n"
    "    .c3 { stroke: #bc8cff } .c4 { stroke: #d29922 }\n"
    "  }\n"
    "</style>\n";

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

// The file's name may hold what XML gives a meaning.
std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e ? '?' : c;
    }
  }
  return out;
}

struct TextOptions {
  const char* anchor = "middle";
  const char* more = "";
};
std::string Text(double x, double y, const std::string& text, const TextOptions& options = {}) {
  return absl::StrCat("<text x=\"", Number(x), "\" y=\"", Number(y), "\" text-anchor=\"",
                      options.anchor, "\"", options.more, ">", Escaped(text), "</text>\n");
}
std::string Line(const char* kind, double x1, double y1, double x2, double y2,
                 const char* dashes = "") {
  return absl::StrCat("<line class=\"", kind, "\" x1=\"", Number(x1), "\" y1=\"", Number(y1),
                      "\" x2=\"", Number(x2), "\" y2=\"", Number(y2), "\" stroke-dasharray=\"",
                      *dashes == '\0' ? "none" : dashes, "\"/>\n");
}

class Plot {
 public:
  explicit Plot(const PlanInput& input) : input_(input), plan_(input.plan) {
    low_ = std::log2(static_cast<double>(plan_.ram_bytes.front()));
    high_ = std::log2(static_cast<double>(plan_.ram_bytes.back()));
    if (high_ - low_ < 1) {  // one size alone stands in the middle
      low_ -= 0.5;
      high_ += 0.5;
    }
  }

  std::string Draw() const {
    std::string svg = absl::StrCat(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", Number(kWidth), " ",
        Number(kHeight), "\" role=\"img\">\n<title>", Escaped(Title()), "</title>\n", kStyle,
        "<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n");
    absl::StrAppend(&svg,
                    Text(kLeft, 26, Title(), {.anchor = "start", .more = " class=\"title\""}));
    absl::StrAppend(&svg, Axes(), Most());
    for (size_t ssd = 0; ssd < plan_.ssd_bytes.size(); ++ssd) absl::StrAppend(&svg, Curve(ssd));
    return svg + "</svg>\n";
  }

 private:
  std::string Title() const {
    const std::string& path = input_.request.path;
    return "Hit rate by RAM and SSD, " + path.substr(path.rfind('/') + 1);
  }
  double X(uint64_t ram) const {
    return kLeft + (std::log2(static_cast<double>(ram)) - low_) / (high_ - low_) * (kRight - kLeft);
  }
  static double Y(double share) { return kBottom - share * (kBottom - kTop); }

  std::string Axes() const {
    std::string svg;
    for (int percent = 0; percent <= 100; percent += 20) {
      const double y = Y(percent / 100.0);
      absl::StrAppend(&svg, Line("grid", kLeft, y, kRight, y));
      absl::StrAppend(&svg, Text(kLeft - 8, y + 4, absl::StrCat(percent, " %"), {.anchor = "end"}));
    }
    // Names stand apart: of many sizes not all have one.
    double last = -1e9;
    for (const uint64_t ram : plan_.ram_bytes) {
      absl::StrAppend(&svg, Line("grid", X(ram), kTop, X(ram), kBottom));
      if (X(ram) - last < 62) continue;
      last = X(ram);
      absl::StrAppend(&svg, Text(last, kBottom + 18, base::FormatBytes(ram)));
    }
    absl::StrAppend(&svg, Line("axis", kLeft, kBottom, kRight, kBottom),
                    Line("axis", kLeft, kTop, kLeft, kBottom));
    absl::StrAppend(&svg, Text((kLeft + kRight) / 2, kBottom + 38, "--ram, the whole budget"));
    return svg + Text(16, (kTop + kBottom) / 2, "tokens that hit",
                      {.more = " transform=\"rotate(-90 16 189)\""});
  }
  std::string Most() const {
    const double share = plan_.most.Share(plan_.most.tokens());
    return Line("most", kLeft, Y(share), kRight, Y(share), "1 4") +
           Text(kLeft + 6, Y(share) - 5, absl::StrCat("at most ", Number(100 * share), " %"),
                {.anchor = "start"});
  }
  std::string Curve(size_t ssd) const {
    const std::string kind = absl::StrCat("line c", ssd % 5);
    std::string points, dots;
    for (size_t ram = 0; ram < plan_.ram_bytes.size(); ++ram) {
      const sizing::Hits& hits = plan_.cell(ram, ssd).hits;
      const double x = X(plan_.ram_bytes[ram]), y = Y(hits.Share(hits.tokens()));
      absl::StrAppend(&points, ram == 0 ? "" : " ", Number(x), ",", Number(y));
      absl::StrAppend(&dots, "<circle class=\"", kind, "\" cx=\"", Number(x), "\" cy=\"", Number(y),
                      "\" r=\"2.5\"/>\n");
    }
    const std::string name =
        plan_.ssd_bytes[ssd] == 0 ? "no SSD" : "--ssd " + base::FormatBytes(plan_.ssd_bytes[ssd]);
    const double x = kLeft + 160 * static_cast<double>(ssd % 4);
    const double y = kBottom + 62 + 18 * static_cast<double>(ssd / 4);
    return absl::StrCat("<polyline class=\"", kind, "\" stroke-dasharray=\"", DashesOf(ssd),
                        "\" points=\"", points, "\"/>\n", dots,
                        Line(kind.c_str(), x, y - 4, x + 28, y - 4, DashesOf(ssd)),
                        Text(x + 34, y, name, {.anchor = "start"}));
  }
  static const char* DashesOf(size_t ssd) {
    const char* const dashes = kDashes[ssd % std::size(kDashes)];
    return *dashes == '\0' ? "none" : dashes;
  }

  const PlanInput& input_;
  const sizing::Plan& plan_;
  double low_ = 0, high_ = 0;  // of log2 of RAM
};

}  // namespace

std::string PlanSvg(const PlanInput& input) { return Plot(input).Draw(); }

}  // namespace prefixd::cli
