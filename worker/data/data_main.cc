// sparsebalance-data: makes datasets from text, and says what is in one.
//
// Exit status: 0 done, 1 an input or a dataset is at fault, 2 the command line is.
#include <cstdint>
#include <exception>
#include <iostream>
#include <map>
#include <string>

#include "CLI/CLI.hpp"
#include "coordinator/config/version.h"
#include "worker/data/dataset_summary.h"
#include "worker/data/indexed_dataset.h"
#include "worker/data/packer.h"

namespace sparsebalance::data {
namespace {

constexpr int kInputError = 1;
constexpr int kUsageError = 2;

int Fail(const absl::Status& status) {
  std::cerr << "sparsebalance-data: " << status.message() << "\n";
  return kInputError;
}

int RunPack(const PackOptions& options) {
  absl::StatusOr<PackReport> report = Pack(options);
  if (!report.ok()) return Fail(report.status());
  std::cout << "packed " << report->documents << " documents from " << report->files
            << " files into " << report->sequences << " sequences of " << report->tokens
            << " tokens: " << options.output << "\n"
            << "split " << report->documents_split << " documents at the cap; skipped "
            << report->empty_files_skipped << " empty files, " << report->empty_documents_skipped
            << " empty documents, " << report->links_skipped << " symbolic links, "
            << report->specials_skipped << " special files\n";
  return 0;
}

int RunInspect(const std::string& prefix, bool json, bool verify) {
  absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(prefix);
  if (!dataset.ok()) return Fail(dataset.status());
  if (verify) {
    absl::Status status = dataset->Verify();
    if (!status.ok()) return Fail(status);
  }
  const DatasetSummary summary = Summarize(*dataset, prefix);
  std::cout << (json ? SummaryJson(summary) : SummaryText(summary));
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app("Makes datasets for sparsebalance-worker and says what is in them.",
               "sparsebalance-data");
  app.set_version_flag("--version", VersionText("sparsebalance-data"));
  app.require_subcommand(1);

  PackOptions options;
  std::vector<std::string> roles = {"assistant"};
  CLI::App* pack = app.add_subcommand("pack", "Pack text and JSONL files into a dataset");
  pack->add_option("--input", options.inputs, "Files and folders, .gz too")->required();
  pack->add_option("--output", options.output, "Prefix of the dataset's files")->required();
  const std::map<std::string, InputFormat> formats = {{"auto", InputFormat::kAuto},
                                                      {"text", InputFormat::kText},
                                                      {"jsonl", InputFormat::kJsonLines}};
  std::string input_format = "auto";
  pack->add_option("--format", input_format,
                   "auto: .jsonl and .ndjson are JSON lines, all else is text")
      ->check(CLI::IsMember({"auto", "text", "jsonl"}))
      ->capture_default_str();
  pack->add_option("--max-tokens", options.max_tokens, "Longest sequence; 0 for no limit")
      ->check(CLI::Range(int64_t{0}, int64_t{2147483647}))
      ->capture_default_str();
  std::string on_too_long = "split";
  pack->add_option("--on-too-long", on_too_long, "What to do beyond --max-tokens")
      ->check(CLI::IsMember({"split", "refuse"}))
      ->capture_default_str();
  pack->add_option("--supervise-roles", roles, "Roles whose messages count towards the loss")
      ->delimiter(',')
      ->option_text("ROLE[,ROLE...]");
  pack->add_flag("--overwrite", options.overwrite, "Replace a dataset of this prefix");

  std::string prefix;
  std::string format = "text";
  bool verify = false;
  CLI::App* inspect = app.add_subcommand("inspect", "Say what is in a dataset");
  inspect->add_option("PREFIX", prefix, "Prefix of the dataset's files")->required();
  inspect->add_option("--format", format, "How to print")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  inspect->add_flag("--verify", verify, "Read every token and check the digest");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kUsageError;
  }
  if (*pack && options.max_tokens != 0 && options.max_tokens < kMinCap) {
    std::cerr << "--max-tokens: " << options.max_tokens << " is too small; use 0 or at least "
              << kMinCap << "\n";
    return kUsageError;
  }
  if (*pack) {
    options.format = formats.at(input_format);
    options.on_too_long = on_too_long == "split" ? OnTooLong::kSplit : OnTooLong::kRefuse;
    options.supervised_roles = std::set<std::string>(roles.begin(), roles.end());
    return RunPack(options);
  }
  return RunInspect(prefix, format == "json", verify);
}

}  // namespace
}  // namespace sparsebalance::data

int main(int argc, char** argv) {
  try {
    return sparsebalance::data::Main(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "sparsebalance-data: " << e.what() << "\n";
    return 1;
  }
}
