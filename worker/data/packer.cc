#include "worker/data/packer.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/data/byte_tokenizer.h"
#include "worker/data/document.h"
#include "worker/data/indexed_dataset_builder.h"
#include "worker/data/input_files.h"

namespace sparsebalance::data {
namespace {

// A document is held in memory with 4 bytes a token; its marks need room below 2^31 - 1.
constexpr size_t kMaxDocumentBytes = std::numeric_limits<int32_t>::max() - 1024;

class Packer {
 public:
  Packer(const PackOptions& options, IndexedDatasetBuilder& builder)
      : options_(options), builder_(builder) {}

  absl::Status AddFile(const std::string& path) {
    ++report_.files;
    const bool json_lines = options_.format == InputFormat::kJsonLines ||
                            (options_.format == InputFormat::kAuto && IsJsonLines(path));
    absl::StatusOr<InputStream> stream = InputStream::Open(path);
    if (!stream.ok()) return stream.status();
    return json_lines ? AddJsonLines(path, *stream) : AddText(path, *stream);
  }

  PackReport& report() { return report_; }

 private:
  absl::Status AddText(const std::string& path, InputStream& stream) {
    std::string text;
    for (size_t before = 0;; before = text.size()) {
      absl::Status status = stream.Read(text);
      if (!status.ok()) return status;
      if (text.size() == before) break;
      if (text.size() > kMaxDocumentBytes) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": is longer than ", kMaxDocumentBytes,
                                                       " bytes; cut the file into several"));
      }
    }
    // A .gz of nothing is not empty on disk.
    if (text.empty()) {
      ++report_.empty_files_skipped;
      return absl::OkStatus();
    }
    return AddDocument(path, DocumentFromText(text));
  }

  absl::Status AddJsonLines(const std::string& path, InputStream& stream) {
    std::string line;
    for (int64_t number = 1;; ++number) {
      const std::string place = absl::StrCat(path, ": line ", number);
      absl::StatusOr<bool> more = stream.ReadLine(line, kMaxDocumentBytes);
      if (!more.ok()) {
        return absl::Status(more.status().code(),
                            absl::StrCat(place, ": ", more.status().message()));
      }
      if (!*more) return absl::OkStatus();
      if (line.find_first_not_of(" \t") == std::string::npos) {
        ++report_.empty_documents_skipped;
        continue;
      }
      absl::StatusOr<Document> document = DocumentFromJson(line, options_.supervised_roles);
      if (!document.ok()) {
        return absl::Status(document.status().code(),
                            absl::StrCat(place, ", ", document.status().message()));
      }
      absl::Status status = AddDocument(place, *std::move(document));
      if (!status.ok()) return status;
    }
  }

  absl::Status AddDocument(const std::string& place, Document document) {
    if (document.tokens.empty()) {
      ++report_.empty_documents_skipped;
      return absl::OkStatus();
    }
    const auto length = static_cast<int64_t>(document.tokens.size());
    std::vector<Document> pieces;
    if (options_.max_tokens > 0 && length > options_.max_tokens) {
      if (options_.on_too_long == OnTooLong::kRefuse) {
        return absl::InvalidArgumentError(
            absl::StrCat(place, ": has ", length, " tokens, more than the cap of ",
                         options_.max_tokens, "; raise --max-tokens or split it"));
      }
      pieces = SplitDocument(std::move(document), options_.max_tokens);
      ++report_.documents_split;
    } else {
      pieces.push_back(std::move(document));
    }
    for (const Document& piece : pieces) {
      absl::Status status = builder_.Add(piece.tokens, piece.mask);
      if (!status.ok()) {
        return absl::Status(status.code(), absl::StrCat(place, ": ", status.message()));
      }
    }
    builder_.EndDocument();
    ++report_.documents;
    return absl::OkStatus();
  }

  const PackOptions& options_;
  IndexedDatasetBuilder& builder_;
  PackReport report_;
};

std::string FormatName(InputFormat format) {
  switch (format) {
    case InputFormat::kAuto:
      return "auto";
    case InputFormat::kText:
      return "text";
    case InputFormat::kJsonLines:
      return "jsonl";
  }
  return "unknown";
}

DatasetMetadata Describe(const PackOptions& options, const PackReport& report) {
  DatasetMetadata metadata;
  metadata.tokenizer = std::string(ByteTokenizer::kName);
  metadata.vocabulary_size = ByteTokenizer::kVocabularySize;
  metadata.counts = {{"files", report.files},
                     {"documents", report.documents},
                     {"sequences", report.sequences},
                     {"tokens", report.tokens},
                     {"documents_split", report.documents_split},
                     {"empty_documents_skipped", report.empty_documents_skipped},
                     {"empty_files_skipped", report.empty_files_skipped},
                     {"links_skipped", report.links_skipped},
                     {"specials_skipped", report.specials_skipped}};
  metadata.parameters = {
      {"format", FormatName(options.format)},
      {"max_tokens", absl::StrCat(options.max_tokens)},
      {"on_too_long", options.on_too_long == OnTooLong::kSplit ? "split" : "refuse"},
      {"supervise_roles", absl::StrJoin(options.supervised_roles, ",")}};
  return metadata;
}

}  // namespace

absl::StatusOr<PackReport> Pack(const PackOptions& options) {
  if (options.max_tokens != 0 &&
      (options.max_tokens < kMinCap || options.max_tokens > std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat("the cap is ", options.max_tokens,
                                                   " tokens; it must be 0 (none) or in [", kMinCap,
                                                   ", 2147483647]"));
  }
  absl::StatusOr<InputFiles> files = CollectInputs(options.inputs);
  if (!files.ok()) return files.status();
  absl::StatusOr<IndexedDatasetBuilder> builder = IndexedDatasetBuilder::Create(
      options.output, TokenTypeForVocabulary(ByteTokenizer::kVocabularySize), {options.overwrite});
  if (!builder.ok()) return builder.status();
  Packer packer(options, *builder);
  PackReport& report = packer.report();
  report.empty_files_skipped = files->empty_skipped;
  report.links_skipped = files->links_skipped;
  report.specials_skipped = files->specials_skipped;
  for (const std::string& path : files->paths) {
    absl::Status status = packer.AddFile(path);
    if (!status.ok()) return status;
  }
  if (builder->sequences() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the inputs hold no document: ", report.files, " files read, ",
                     report.empty_files_skipped, " empty files, ", report.empty_documents_skipped,
                     " empty documents and ", report.links_skipped, " links skipped"));
  }
  report.sequences = static_cast<int64_t>(builder->sequences());
  report.tokens = builder->tokens();
  absl::Status status = builder->Finalize(Describe(options, report));
  if (!status.ok()) return status;
  return report;
}

}  // namespace sparsebalance::data
