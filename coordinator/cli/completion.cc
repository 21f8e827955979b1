#include "coordinator/cli/completion.h"

#include <CLI/CLI.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace sparsebalance {
namespace {

struct Verb {
  std::string name;
  std::string help;
  bool takes_job = false;
  std::vector<std::string> flags;
};

std::vector<std::string> FlagsOf(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

std::vector<Verb> VerbsOf(const CLI::App& app) {
  std::vector<Verb> verbs;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    Verb& made = verbs.emplace_back();
    made.name = verb->get_name();
    made.help = verb->get_description();
    made.flags = FlagsOf(*verb);
    for (const CLI::Option* option : verb->get_options()) {
      made.takes_job |= option->get_positional() && option->get_name(true) == "job";
    }
  }
  return verbs;
}

std::vector<std::string> Names(const std::vector<Verb>& verbs, bool only_with_job) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs) {
    if (!only_with_job || verb.takes_job) names.push_back(verb.name);
  }
  return names;
}

std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// Used by bash, and by zsh through its emulation of bash's completion.
std::string BashScript(const std::vector<Verb>& verbs, const std::vector<std::string>& flags) {
  std::string script = absl::StrCat(
      "_sbctl() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} verb= i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case ${COMP_WORDS[i]} in\n"
      "      ",
      absl::StrJoin(Names(verbs, false), "|"),
      ") verb=${COMP_WORDS[i]}; break ;;\n"
      "    esac\n"
      "  done\n"
      "  local words=",
      Quoted(absl::StrJoin(flags, " ")),
      "\n"
      "  case $verb in\n"
      "    '') words+=",
      Quoted(" " + absl::StrJoin(Names(verbs, false), " ")), " ;;\n");
  for (const Verb& verb : verbs) {
    absl::StrAppend(&script, "    ", verb.name,
                    ") words+=", Quoted(" " + absl::StrJoin(verb.flags, " ")), " ;;\n");
  }
  absl::StrAppend(&script,
                  "  esac\n"
                  "  if [[ $word != -* ]]; then\n"
                  "    case $verb in\n"
                  "      ",
                  absl::StrJoin(Names(verbs, true), "|"),
                  ") words+=\" $(sbctl --timeout 1 --format names jobs 2>/dev/null)\" ;;\n"
                  "    esac\n"
                  "  fi\n"
                  "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
                  "  [[ -n $verb && $word != -* && ${#COMPREPLY[@]} -eq 0 ]] &&\n"
                  "    COMPREPLY=($(compgen -f -- \"$word\"))\n"
                  "}\n"
                  "complete -F _sbctl sbctl\n");
  return script;
}

std::string FishScript(const std::vector<Verb>& verbs, const std::vector<std::string>& flags) {
  std::string script;
  for (const std::string& flag : flags) {
    absl::StrAppend(&script, "complete -c sbctl -l ", flag.substr(2), "\n");
  }
  for (const Verb& verb : verbs) {
    absl::StrAppend(&script, "complete -c sbctl -n __fish_use_subcommand -f -a ", verb.name, " -d ",
                    Quoted(verb.help), "\n");
    const std::string seen = absl::StrCat("'__fish_seen_subcommand_from ", verb.name, "'");
    for (const std::string& flag : verb.flags) {
      absl::StrAppend(&script, "complete -c sbctl -n ", seen, " -l ", flag.substr(2), "\n");
    }
    if (verb.takes_job) {
      absl::StrAppend(&script, "complete -c sbctl -n ", seen,
                      " -f -a '(sbctl --timeout 1 --format names jobs 2>/dev/null)'\n");
    }
  }
  return script;
}

}  // namespace

absl::StatusOr<std::string> CompletionScript(const CLI::App& app, const std::string& shell) {
  const std::vector<Verb> verbs = VerbsOf(app);
  const std::vector<std::string> flags = FlagsOf(app);
  if (shell == "bash") return BashScript(verbs, flags);
  if (shell == "zsh") {
    return absl::StrCat(
        "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && "
        "bashcompinit\n",
        BashScript(verbs, flags));
  }
  if (shell == "fish") return FishScript(verbs, flags);
  return absl::InvalidArgumentError(
      absl::StrCat("there is no completion for '", shell, "', only for bash, zsh and fish"));
}

}  // namespace sparsebalance
