// The files that a packing run reads: named ones, and those below named folders; plain or gzip.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsebalance::data {

struct InputFiles {
  std::vector<std::string> paths;  // in the order of the arguments, sorted by bytes within a folder
  int64_t links_skipped = 0;       // symbolic links below folders
  int64_t specials_skipped = 0;    // neither file nor folder: pipes, sockets, devices
  int64_t empty_skipped = 0;       // files of 0 bytes
};

// Walks `inputs`. A link that is itself named as an input is followed: it was asked for; links
// found below a folder are not, they may lead anywhere. NOT_FOUND or the system's error names the
// path.
absl::StatusOr<InputFiles> CollectInputs(const std::vector<std::string>& inputs);

// True for names that end in .gz.
bool IsGzip(const std::string& path);
// True for names that end in .jsonl, .ndjson, or either and .gz.
bool IsJsonLines(const std::string& path);

// Reads a file from begin to end, through zlib where its name ends in .gz.
class InputStream {
 public:
  InputStream() = default;
  ~InputStream();
  InputStream(InputStream&& other) noexcept;
  InputStream& operator=(InputStream&& other) noexcept;

  static absl::StatusOr<InputStream> Open(const std::string& path);

  // Appends up to 1 MiB to `out`; appends nothing at the end. DATA_LOSS for damaged or cut gzip.
  absl::Status Read(std::string& out);

  // Takes the next line without its end ("\n" or "\r\n"); false at the end of the file.
  // RESOURCE_EXHAUSTED for a line longer than `max_bytes`.
  absl::StatusOr<bool> ReadLine(std::string& line, size_t max_bytes);

 private:
  absl::Status ReadPlain(std::string& out, size_t old_size);
  absl::Status ReadGzip(std::string& out, size_t old_size);

  std::string path_;
  int fd_ = -1;
  void* gzip_ = nullptr;  // gzFile
  std::string pending_;   // read, not yet handed out as a line
  size_t pending_begin_ = 0;
};

}  // namespace sparsebalance::data
