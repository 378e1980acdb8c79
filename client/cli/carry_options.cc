#include "client/cli/carry_options.h"

#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "client/cli/add_command.h"

namespace prefixd::cli {
namespace {

constexpr char kNewStyle[] = "mlx-lm-0.32", kOldStyle[] = "meta-state";
constexpr char kMlx[] = "mlx-lm", kLlama[] = "llama.cpp";

void DeclareShared(CLI::App* command, Options* options, CarryTexts* texts) {
  command
      ->add_option("FILE", options->path,
                   "a prompt cache of mlx-lm (.safetensors), or a sequence state of llama.cpp")
      ->required();
  command
      ->add_option("--format", texts->format,
                   "mlx-lm (default), or llama.cpp: what llama_state_seq_save_file writes")
      ->type_name("FORMAT");
  CLI::Option* space =
      command
          ->add_option("--space", options->space,
                       "whose it is: the first digits of a space id (prefixctl spaces)")
          ->type_name("ID");
  command
      ->add_option("--identity", options->identity,
                   "whose it is: a JSON file with model, weights_digest, rope, ...")
      ->type_name("PATH")
      ->excludes(space);
  CLI::Option* tokens = command->add_option("--tokens", options->tokens, "token ids: 1,2,3");
  tokens->delimiter(',')->allow_extra_args(false)->type_name("IDS");
  command
      ->add_option("--tokens-file", texts->tokens_file,
                   "token ids from a file, between blanks, commas or brackets")
      ->type_name("PATH")
      ->excludes(tokens);
}

absl::Status ReadTokens(const std::string& path, std::vector<uint32_t>* tokens) {
  PREFIXD_ASSIGN_OR_RETURN(const std::string text, ReadTextFile("--tokens-file", path));
  std::string number;
  for (const char c : text + " ") {
    if (std::isspace(static_cast<unsigned char>(c)) == 0 && c != ',' && c != '[' && c != ']') {
      number.push_back(c);
      continue;
    }
    if (number.empty()) continue;
    if (!absl::SimpleAtoi(number, &tokens->emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat("--tokens-file: ", path, " holds \"", number,
                                                     "\", which is not a token id"));
    }
    number.clear();
  }
  if (!tokens->empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--tokens-file: ", path, " holds no token id"));
}

}  // namespace

void DeclareFolder(CLI::App* command, Options* options) {
  command->add_option("--adapter", options->adapter, "folder of the LoRA adapter that is in use")
      ->type_name("DIR");
}

void DeclareIdentity(CLI::App& app, Options* options) {
  CLI::App* identity = AddCommand(
      app, options, Command::kIdentity, "identity",
      "print the identity of a model's folder, as prefixd.mlx.server opens its space",
      "For import --identity, and to compare with prefixctl spaces --explain. Reads the weights "
      "whole,\n"
      "once; no prefixd is asked. Layers and formats are not in it: import takes them from the "
      "file.\n"
      "Examples:\n  prefixctl identity --model ~/models/Qwen3-0.6B > model.json");
  identity->add_option("--model", options->model, "folder with config.json and *.safetensors")
      ->type_name("DIR")
      ->required();
  DeclareFolder(identity, options);
}

void DeclareCarry(CLI::App& app, Options* options, CarryTexts* texts) {
  DeclareIdentity(app, options);
  CLI::App* import = AddCommand(
      app, options, Command::kImport, "import",
      "store what mlx-lm or llama.cpp saved of a sequence, as it is packed there",
      "Without flags the file itself says whose it is and of which tokens, as export writes it.\n"
      "--identity FILE is JSON: {\"model\": \"...\", \"weights_digest\": \"64 hex digits\",\n"
      "\"tokenizer_digest\": ..., \"adapter_digest\": ..., \"salt\": \"\", \"block_tokens\": 64,\n"
      "\"rope\": {\"theta\": 1e6, \"rotary_dim\": 128, \"scaling\": \"\", \"scaling_params\": [],\n"
      "\"interleaved\": false}}; it must be the one that the workers of the model open.\n"
      "Rotating caches are sliding layers until they wrap; then they, like recurrent states, are\n"
      "restored after exactly as many tokens as the file has. The caches of a CacheList are "
      "layers\n"
      "of their own.\n"
      "A state of llama.cpp does not say heads and dims: --space, or --identity with\n"
      "\"layers\": [{\"count\": 32, \"kv_heads\": 8, \"key_dim\": 128, \"value_dim\": 128}].\n"
      "Examples:\n  prefixctl import cache.safetensors\n"
      "  prefixctl import cache.safetensors --model ~/models/Qwen3-0.6B --tokens-file ids.json\n"
      "  prefixctl import cache.safetensors --identity model.json --tokens-file ids.json\n"
      "  prefixctl import cache.safetensors --space 3f2a --tokens 1,2,3\n"
      "  prefixctl import slot.bin --format llama.cpp --identity model.json");
  DeclareShared(import, options, texts);
  CLI::Option* model =
      import->add_option("--model", options->model,
                         "whose it is: the model's folder, as prefixd.mlx.server opens its space");
  model->type_name("DIR")->excludes("--identity")->excludes("--space");
  DeclareFolder(import, options);
  CLI::App* save =
      AddCommand(app, options, Command::kExport, "export",
                 "write what is cached of a prompt for mlx-lm or llama.cpp to load",
                 "In the format that the most tokens are cached in. Exit code 4, and no file, when "
                 "none is.\n"
                 "With recurrent states, or caches in a CacheList, --like names a prompt cache of\n"
                 "the model, whatever its tokens: its classes and shapes are taken.\n"
                 "Examples:\n  prefixctl export cache.safetensors --space 3f2a --tokens-file "
                 "ids.json\n"
                 "  prefixctl export old.safetensors --space 3f2a --tokens 1,2 --style meta-state");
  DeclareShared(save, options, texts);
  save->add_option(
          "--model", options->model,
          "the model that mlx_lm.generate --model will name (default: that of --like, else "
          "the space's)")
      ->type_name("NAME");
  save->add_flag("--force", options->force, "replace a file that is there");
  save->add_option("--style", texts->style,
                   "for mlx-lm-0.32 and later (default), or meta-state for those before")
      ->type_name("STYLE");
  save->add_option("--like", options->like,
                   "a prompt cache of the model, whose classes and shapes of states are taken")
      ->type_name("PATH");
}

absl::Status ReadCarry(const CarryTexts& texts, Options* options) {
  const bool exports = options->command == Command::kExport;
  if (!exports && options->command != Command::kImport) return absl::OkStatus();
  if (!texts.tokens_file.empty()) {
    PREFIXD_RETURN_IF_ERROR(ReadTokens(texts.tokens_file, &options->tokens));
  }
  if (!texts.style.empty() && texts.style != kNewStyle && texts.style != kOldStyle) {
    return absl::InvalidArgumentError(
        absl::StrCat("--style: \"", texts.style, "\", accepted: ", kNewStyle, ", ", kOldStyle));
  }
  if (!texts.format.empty() && texts.format != kMlx && texts.format != kLlama) {
    return absl::InvalidArgumentError(
        absl::StrCat("--format: \"", texts.format, "\", accepted: ", kMlx, ", ", kLlama));
  }
  options->meta_state = texts.style == kOldStyle;
  options->llama = texts.format == kLlama;
  if (options->llama && (!texts.style.empty() || !options->like.empty())) {
    return absl::InvalidArgumentError("export: --style and --like are of mlx-lm's files");
  }
  if (!exports) return absl::OkStatus();
  if (!options->force && std::filesystem::exists(options->path)) {
    return absl::InvalidArgumentError(absl::StrCat("export: ", options->path,
                                                   " is there already: name another file, or say "
                                                   "--force"));
  }
  if (options->space.empty() && options->identity.empty()) {
    return absl::InvalidArgumentError("export: --space or --identity is required: whose is it?");
  }
  if (!options->tokens.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("export: --tokens or --tokens-file is required: which prompt?");
}

absl::StatusOr<std::string> ReadTextFile(const char* flag, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot read ", path));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace prefixd::cli
