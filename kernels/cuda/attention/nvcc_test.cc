// What nvcc makes of the attention kernels for sm_80 and sm_90: the assembler needs what
// ptxas_table.txt says, no spills, and shared memory that a device has; tiles are multiplied by
// tensor cores. Nothing is run: this needs the compiler, not a GPU.
//
// After a change of kernels, SPARSEBALANCE_WRITE_PTXAS_TABLE=1 in the environment makes the test
// rewrite the table; then look at the difference.

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/attention/attention_sizes.h"
#include "kernels/cuda/attention/router.h"
#include "kernels/cuda/device/objects_test_util.h"

namespace sparsebalance::kernels::cuda {
namespace {

using testing::HasSubstr;

constexpr char kTable[] = "/kernels/cuda/attention/ptxas_table.txt";
// Where a launcher asks for as much as the longest sequence takes.
constexpr int64_t kVaries = -1;

struct Row {
  std::string file, architecture, kernel;
  int64_t registers = 0, static_shared = 0, dynamic_shared = 0, spills = 0;

  auto Key() const { return std::tie(file, architecture, kernel); }
};

std::string ToText(const Row& row) {
  return absl::StrCat(row.file, " | ", row.architecture, " | ", row.kernel, " | ", row.registers,
                      " | ", row.static_shared, " | ",
                      row.dynamic_shared == kVaries ? "varies" : absl::StrCat(row.dynamic_shared),
                      " | ", row.spills);
}

// Dynamic shared memory of kernels that have any.
std::map<std::string, int64_t> DynamicBytes() {
  std::map<std::string, int64_t> bytes;
  const auto add = [&](const std::string& arguments, int64_t forward, int64_t query_grads,
                       int64_t key_grads) {
    bytes[absl::StrCat("ForwardTiles<", arguments, ">")] = forward;
    bytes[absl::StrCat("QueryGradTiles<", arguments, ">")] = query_grads;
    bytes[absl::StrCat("KeyGradTiles<", arguments, ">")] = key_grads;
  };
  const auto add_dims = [&]<typename T>(T /*element*/, const std::string& name) {
    const auto add_dim = [&]<int kDim>(std::integral_constant<int, kDim> /*dim*/) {
      add(absl::StrCat(name, ", ", kDim), ForwardSizes<T, kDim>::kSharedBytes,
          QueryGradSizes<T, kDim>::kSharedBytes, KeyGradSizes<T, kDim>::kSharedBytes);
    };
    add_dim(std::integral_constant<int, 32>());
    add_dim(std::integral_constant<int, 64>());
    add_dim(std::integral_constant<int, 128>());
  };
  add_dims(0.0F, "float");
  add_dims(Bf16(0.0F), "Bf16");
  return bytes;
}

// "ForwardTiles<Bf16, 128>" of a mangled kernel.
std::string KernelName(const std::string& mangled) {
  const std::unique_ptr<char, void (*)(void*)> demangled(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, nullptr), std::free);
  std::string name = demangled == nullptr ? mangled : demangled.get();
  name = std::regex_replace(name,
                            std::regex(R"(\(anonymous namespace\)::|sparsebalance::|)"
                                       R"(kernels::|cuda::|^void )"),
                            "");
  return name.substr(0, name.find('('));
}

// What ptxas -v says, but for dynamic shared memory.
std::vector<Row> ParsePtxas(const std::string& file, const std::string& output) {
  static const std::regex kEntry(R"(Compiling entry function '(\S+)' for '(\S+)')");
  static const std::regex kSpills(R"((\d+) bytes spill stores, (\d+) bytes spill loads)");
  static const std::regex kUsed(R"(Used (\d+) registers)");
  static const std::regex kShared(R"((\d+) bytes smem)");
  std::vector<Row> rows;
  std::istringstream lines(output);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_search(line, match, kEntry)) {
      rows.push_back({file, match[2], KernelName(match[1]), 0, 0, 0, 0});
    } else if (!rows.empty() && std::regex_search(line, match, kSpills)) {
      rows.back().spills = std::stoll(match[1]) + std::stoll(match[2]);
    } else if (!rows.empty() && std::regex_search(line, match, kUsed)) {
      rows.back().registers = std::stoll(match[1]);
      if (std::regex_search(line, match, kShared)) rows.back().static_shared = std::stoll(match[1]);
    }
  }
  return rows;
}

std::vector<Row> ReadTable(const std::string& path) {
  std::vector<Row> rows;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::vector<std::string> fields;
    for (size_t at = 0; at <= line.size();) {
      const size_t end = std::min(line.find(" | ", at), line.size());
      fields.push_back(line.substr(at, end - at));
      at = end + 3;
    }
    if (fields.size() != 7) {
      ADD_FAILURE() << path << " has a line that is no row: " << line;
      continue;
    }
    rows.push_back({fields[0], fields[1], fields[2], std::stoll(fields[3]), std::stoll(fields[4]),
                    fields[5] == "varies" ? kVaries : std::stoll(fields[5]),
                    std::stoll(fields[6])});
  }
  return rows;
}

void WriteTable(const std::string& path, std::vector<Row> rows) {
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.Key() < b.Key(); });
  std::ofstream out(path);
  out << "# What the assembler of CUDA 13.0 makes of the attention kernels; nvcc_test.cc checks "
         "all "
         "but the registers,\n# and says how to write this file. Bytes of shared memory are those "
         "of a thread block.\n# file | architecture | kernel | registers | static shared | dynamic "
         "shared | spills\n";
  for (const Row& row : rows) out << ToText(row) << "\n";
}

class AttentionNvccTest : public CudaObjectTest {
 protected:
  // Nothing of this program changes the environment.
  static std::string Environment(const char* name) {
    const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
    return value == nullptr ? "" : value;
  }
};

INSTANTIATE_TEST_SUITE_P(Files, AttentionNvccTest,
                         testing::Values("attention/attention_backward",
                                         "attention/attention_forward",
                                         "attention/attention_key_grads",
                                         "attention/attention_mass",
                                         "attention/attention_query_grads", "attention/block_lists",
                                         "attention/coverage", "attention/router"),
                         [](const auto& test) { return test.param.substr(10); });

// Where the tiles are multiplied.
bool HasTileProducts(const std::string& file) {
  return file == "attention_forward" || file == "attention_key_grads" ||
         file == "attention_query_grads";
}

void ExpectFits(const Row& row) {
  SCOPED_TRACE(ToText(row));
  EXPECT_EQ(row.spills, 0);
  if (row.dynamic_shared == kVaries) return;
  const int64_t limit = row.architecture == "sm_80" ? kSharedSm80 : kSharedSm90;
  const int64_t bytes = row.static_shared + row.dynamic_shared;
  EXPECT_LE(bytes, limit);
  // The system takes 1 KiB of each thread block, and a multiprocessor has 1 KiB more than one
  // thread block may have.
  constexpr int64_t kReserved = 1024;
  if (absl::StrContains(row.kernel, "Bf16")) {
    EXPECT_LE(2 * (bytes + kReserved), limit + kReserved) << "two should fit";
    EXPECT_LE(2 * kTileThreads * row.registers, 65536);
  }
}

TEST_P(AttentionNvccTest, TheAssemblerNeedsWhatTheTableSays) {
  const std::string file = GetParam().substr(10);
  std::vector<Row> rows = ParsePtxas(file, AssemblerReport());
  ASSERT_GT(rows.size(), 0) << AssemblerReport();
  const std::map<std::string, int64_t> dynamic = DynamicBytes();
  for (Row& row : rows) {
    const auto found = dynamic.find(row.kernel);
    if (found != dynamic.end()) {
      row.dynamic_shared = found->second;
    } else if (absl::StartsWith(row.kernel, "SelectBlocks") ||
               absl::StartsWith(row.kernel, "CoverageSums")) {
      row.dynamic_shared = kVaries;
    }
    ExpectFits(row);
  }

  const std::string path = Environment("SPARSEBALANCE_SOURCE_DIR") + kTable;
  std::vector<Row> table = ReadTable(path);
  const auto of_this_file = [&](const Row& row) { return row.file == file; };
  if (!Environment("SPARSEBALANCE_WRITE_PTXAS_TABLE").empty()) {
    table.erase(std::remove_if(table.begin(), table.end(), of_this_file), table.end());
    table.insert(table.end(), rows.begin(), rows.end());
    WriteTable(path, table);
  } else {
    // Registers differ from one version of the compiler to the next.
    const auto comparable = [&](std::vector<Row> all) {
      std::vector<std::string> texts;
      for (Row& row : all) {
        row.registers = 0;
        if (of_this_file(row)) texts.push_back(ToText(row));
      }
      return texts;
    };
    EXPECT_THAT(comparable(rows), testing::UnorderedElementsAreArray(comparable(table)))
        << "nvcc_test.cc says how to rewrite the table";
  }

  if (!HasTileProducts(file)) return;
  for (const char* architecture : {"80", "90"}) {
    const std::string ptx = Ptx(architecture);
    EXPECT_THAT(ptx, HasSubstr(absl::StrCat(".target sm_", architecture)));
    for (const char* instruction : {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
                                    "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
                                    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
                                    "cp.async.cg.shared.global", "ex2.approx.ftz.f32"}) {
      EXPECT_THAT(ptx, HasSubstr(instruction)) << "for sm_" << architecture;
    }
  }
}

}  // namespace
}  // namespace sparsebalance::kernels::cuda
