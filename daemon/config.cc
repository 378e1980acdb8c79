#include "daemon/config.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/nearest.h"
#include "base/status.h"
#include "base/version.h"
#include "completion/completion.h"
#include "daemon/fd_socket.h"
#include "daemon/listen_address.h"
#include "daemon/remote_settings.h"
#include "daemon/settings.h"
#include "daemon/socket_guard.h"
#include "daemon/tracing_settings.h"
#include "os/memory.h"
#include "os/process.h"
#include "wire/admin_socket.h"

namespace prefixd::daemon {
namespace {

using Values = std::map<std::string, std::string>;

std::string VariableName(const std::string& setting) {
  std::string name = "PREFIXD_" + setting;
  std::replace(name.begin(), name.end(), '-', '_');
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return name;
}

bool IsSetting(const std::string& name) {
  const std::span<const SettingRule> rules = Settings();
  return std::any_of(rules.begin(), rules.end(),
                     [&](const SettingRule& rule) { return name == rule.name; });
}

std::vector<std::string> SettingNames() {
  std::vector<std::string> names;
  for (const SettingRule& rule : Settings()) names.emplace_back(rule.name);
  return names;
}

// Returns a hint for the first argument that is no flag of prefixd but is like one, or "".
std::string FlagHint(const std::vector<std::string>& args) {
  std::vector<std::string> known = SettingNames();
  known.insert(known.end(), {"config", "help", "version"});
  for (const std::string& arg : args) {
    if (!arg.starts_with("--")) continue;
    const std::string name = arg.substr(2, arg.find('=') - 2);
    if (std::ranges::find(known, name) == known.end()) {
      return base::DidYouMean(name, known, "--");
    }
  }
  return "";
}

struct Flags {
  Values given;
  std::string config_file;
  std::string print;
};

// CLI11's own order is flag, file, environment. Here CLI11 only reads the flags and the file's
// syntax; LoadConfig decides the order.
absl::StatusOr<Flags> ReadFlags(std::vector<std::string> args) {
  Flags flags;
  const std::string hint = FlagHint(args);
  CLI::App app(
      "prefixd: the prefix cache beside LLM workers. Settings come from flags, PREFIXD_* "
      "variables\n"
      "(PREFIXD_SSD_FLOOR), and the file that --config names, in this order.",
      "prefixd");
  Values values;
  std::vector<std::pair<const SettingRule*, CLI::Option*>> options;
  for (const SettingRule& rule : Settings()) {
    const std::string flag = absl::StrCat("--", rule.name);
    std::string& value = values[rule.name];
    CLI::Option* option = rule.placeholder == nullptr
                              ? app.add_flag(flag, value, rule.help)
                              : app.add_option(flag, value, rule.help)->type_name(rule.placeholder);
    option->default_str(rule.default_value)->multi_option_policy(CLI::MultiOptionPolicy::Throw);
    options.emplace_back(&rule, option);
  }
  app.add_option("--config", flags.config_file, "file with settings, ram = \"2GiB\" a line")
      ->type_name("PATH");
  app.set_version_flag("--version", std::string("prefixd ") + kVersion);
  app.footer(
      "Exit codes: 0 stopped, all saved; 1 failed while running; 2 wrong setting; 3 could not "
      "start;\n"
      "4 stopped with bytes unsaved; 130 stopped at once by a second signal.");
  completion::AddTo(app);
  std::reverse(args.begin(), args.end());
  try {
    app.parse(args);
  } catch (const CLI::CallForHelp&) {
    flags.print = app.help();
    return flags;
  } catch (const CLI::CallForVersion& text) {  // --completion too
    flags.print = std::string(text.what()) + "\n";
    return flags;
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(), hint, hint.empty() ? "; " : " ",
                                                   "prefixd --help lists what is accepted"));
  }
  for (const auto& [rule, option] : options) {
    if (option->count() > 0) flags.given[rule->name] = values[rule->name];
  }
  return flags;
}

// Returns ", line 3" for the line that sets `name` for the `nth` time, or last; "" if none does.
// `name` includes its section ("daemon.ram"), the line does not.
std::string LineOf(const std::string& path, const std::string& name, int nth) {
  const std::string key = name.substr(name.rfind('.') + 1);
  std::ifstream file(path);
  int number = 0, found = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (!absl::StartsWith(text, key)) continue;
    const absl::string_view rest = absl::StripLeadingAsciiWhitespace(text.substr(key.size()));
    if (absl::StartsWith(rest, "=") && nth-- > 0) found = number;
  }
  return found == 0 ? "" : absl::StrCat(", line ", found);
}

absl::StatusOr<Values> ReadFile(const std::string& path) {
  Values values;
  std::vector<CLI::ConfigItem> items;
  std::ifstream file(path);
  if (!file.good()) return absl::InvalidArgumentError(absl::StrCat("config: cannot read ", path));
  try {
    items = CLI::ConfigTOML().from_config(file);
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(absl::StrCat("config: ", path, ": ", error.what()));
  }
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--")
      continue;  // a section begins or ends; the names of its keys include it
    const std::string name = item.fullname();
    if (!IsSetting(name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "config: ", path, LineOf(path, name, 1), " sets \"", name, "\", which is not a setting",
          base::DidYouMean(name.substr(name.rfind('.') + 1), SettingNames()),
          " prefixd --help lists them"));
    }
    if (item.inputs.size() != 1 || values.contains(name)) {
      return absl::InvalidArgumentError(absl::StrCat("config: ", path, LineOf(path, name, 2),
                                                     " must give ", name, " one value, once"));
    }
    values[name] = item.inputs.front();
  }
  return values;
}

Setting Choose(const SettingRule& rule, const Values& flags, const Environment& environment,
               const Values& file) {
  const std::string name = rule.name;
  if (const auto it = flags.find(name); it != flags.end()) return {name, it->second, "flag"};
  if (const auto it = environment.find(VariableName(name)); it != environment.end()) {
    return {name, it->second, "environment"};
  }
  if (const auto it = file.find(name); it != file.end()) return {name, it->second, "file"};
  return {name, rule.default_value, "default"};
}

// Returns " (did you mean PREFIXD_RAM?)" or "".
std::string Hint(const std::string& variable) {
  std::vector<std::string> known;
  for (const std::string& name : SettingNames()) known.push_back(VariableName(name));
  const std::string nearest = base::Nearest(variable, known);
  return nearest.empty() ? "" : absl::StrCat(" (did you mean ", nearest, "?)");
}

std::vector<std::string> UnknownVariables(const Environment& environment) {
  std::vector<std::string> unknown;
  for (const auto& [name, value] : environment) {
    const std::span<const SettingRule> rules = Settings();
    const bool known =
        std::any_of(rules.begin(), rules.end(), [&, &variable = name](const SettingRule& rule) {
          return variable == VariableName(rule.name);
        });
    // The others belong to prefixctl and to the Python package.
    constexpr std::array kOthers = {"PREFIXD_CONFIG", "PREFIXD_SERVER",  "PREFIXD_ADMIN",
                                    "PREFIXD_SALT",   "PREFIXD_LIBRARY", "PREFIXD_TLS_CA"};
    const bool other = std::ranges::find(kOthers, name) != kOthers.end();
    if (name.starts_with("PREFIXD_") && !other && !known) unknown.push_back(name + Hint(name));
  }
  return unknown;
}

absl::Status CheckTogether(const Config& config) {
  PREFIXD_RETURN_IF_ERROR(SocketGuard::CheckLength(FdSocketPath(config.socket)));
  PREFIXD_RETURN_IF_ERROR(SocketGuard::CheckLength(config.socket));
  PREFIXD_RETURN_IF_ERROR(SocketGuard::CheckLength(config.admin_socket));
  if (config.admin_socket == config.socket) {
    return absl::InvalidArgumentError(absl::StrCat(
        "admin-socket: ", config.socket, " is the workers' socket; it wants a path of its own"));
  }
  PREFIXD_RETURN_IF_ERROR(CheckRemote(config.remote));
  if (config.page && config.metrics.empty()) {
    return absl::InvalidArgumentError(
        "page: it is served on the address of the metrics: give one, --metrics 127.0.0.1:9464 say");
  }
  if (config.tls_certificate.empty() != config.tls_key.empty()) {
    return absl::InvalidArgumentError("tls-certificate and tls-key are given together");
  }
  if (config.tls_certificate.empty() && !config.tls_client_ca.empty()) {
    return absl::InvalidArgumentError("tls-client-ca: wants tls-certificate and tls-key too");
  }
  if (!config.tls_certificate.empty()) return absl::OkStatus();
  if (config.listen.empty() || config.insecure) return absl::OkStatus();
  PREFIXD_ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(config.listen));
  if (address.loopback) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "listen: ", config.listen,
      " is reachable from other machines and the connection is not encrypted; "
      "use a loopback address, give --tls-certificate and --tls-key, or say --insecure"));
}

}  // namespace

std::string AutoArenaPath(const std::string& socket) {
  const std::string path = std::filesystem::absolute(socket).lexically_normal().string();
  return absl::StrCat(os::FolderForSharedMemory(), "/prefixd-",
                      base::ToHex(base::Sha256(base::AsBytes(path))).substr(0, 16), ".arena");
}

std::string AutoTokenPath(const std::string& socket) {
  absl::string_view stem = socket;
  absl::ConsumeSuffix(&stem, ".sock");
  return absl::StrCat(stem, ".token");
}

std::string AutoIdFilePath(const std::string& folder, const std::string& directory) {
  const std::string path = std::filesystem::absolute(directory).lexically_normal().string();
  return absl::StrCat(folder, "/", base::ToHex(base::Sha256(base::AsBytes(path))).substr(0, 16));
}

void Config::Echo(const std::string& name, const std::string& value) {
  for (Setting& setting : settings) {
    if (setting.name == name) setting.value = value;
  }
}

Environment ProcessEnvironment() {
  Environment environment;
  for (char** entry = os::Variables(); *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) environment[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return environment;
}

absl::StatusOr<LoadedConfig> LoadConfig(const std::vector<std::string>& args,
                                        const Environment& environment) {
  PREFIXD_ASSIGN_OR_RETURN(Flags flags, ReadFlags(args));
  LoadedConfig loaded{.config = {}, .print = flags.print};
  if (!loaded.print.empty()) return loaded;
  if (const auto it = environment.find("PREFIXD_CONFIG");
      it != environment.end() && flags.config_file.empty()) {
    flags.config_file = it->second;
  }
  Values file;
  if (!flags.config_file.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(file, ReadFile(flags.config_file));
  }
  Config& config = loaded.config;
  for (const SettingRule& rule : Settings()) {
    const Setting& setting =
        config.settings.emplace_back(Choose(rule, flags.given, environment, file));
    if (absl::Status status = rule.apply(setting.value, environment, &config); !status.ok()) {
      const std::string where =
          setting.source == "file"
              ? absl::StrCat(" ", flags.config_file, LineOf(flags.config_file, setting.name, 1))
              : "";
      return absl::InvalidArgumentError(absl::StrCat(setting.name, " (", setting.source, where,
                                                     "): ", std::string(status.message())));
    }
  }
  config.unknown = UnknownVariables(environment);
  config.Echo("socket", config.socket);
  config.Echo("directory", config.directory);
  if (config.ssd_id_file.ends_with("/prefixd-known")) {
    config.ssd_id_file = AutoIdFilePath(config.ssd_id_file, config.directory);
  }
  config.Echo("ssd-id-file", config.ssd_id_file.empty() ? "off" : config.ssd_id_file);
  if (config.admin_socket == "auto") config.admin_socket = wire::AdminSocketOf(config.socket);
  if (config.token_file == "auto") config.token_file = AutoTokenPath(config.socket);
  config.Echo("admin-socket", config.admin_socket.empty() ? "off" : config.admin_socket);
  config.Echo("token-file", config.token_file);
  PREFIXD_RETURN_IF_ERROR(ResolveTracing(environment, &config.tracing));
  const std::optional<CollectorAddress>& collector = config.tracing.collector;
  config.Echo("otlp-endpoint", collector.has_value() ? ToString(*collector) : "off");
  PREFIXD_RETURN_IF_ERROR(CheckTogether(config));
  if (config.arena == "auto") config.arena = AutoArenaPath(config.socket);
  if (!config.arena.empty()) config.Echo("arena", config.arena);
  return loaded;
}

}  // namespace prefixd::daemon
